"""Source of a model's configuration: a folder, a file, the local cache of Hugging Face, or JSON text."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from typing import Any

from .problem import ProfileError, reason

LARGEST = 16 << 20
"""Maximum size of a config.json in bytes."""


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a config.json, its content and its digest."""

    folder: str
    config: dict[str, Any]
    digest: str
    owner: Any = None
    """The object that removes a temporary folder when nothing refers to it any more; None for any other folder."""


def read_source(name: str) -> ModelFolder:
    """Return the configuration of a folder, of a config.json, of a Hugging Face id in the local cache, or in JSON."""
    owner = None
    if name.startswith("{"):
        # transformers reads configurations from folders only.
        owner = tempfile.TemporaryDirectory()
        path = os.path.join(owner.name, "config.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(name)
    else:
        path = _config_path(name)
    try:
        if os.path.getsize(path) > LARGEST:
            raise ProfileError("config_too_large", path=path, bytes=os.path.getsize(path))
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ProfileError("config_unreadable", path=path, reason=reason(error)) from error
    try:
        config = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProfileError("config_invalid_json", path=path, reason=reason(error)) from error
    if not isinstance(config, dict):
        raise ProfileError("config_not_an_object", path=path)
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        raise ProfileError("model_type_missing", path=path)
    # Spaces and the order of keys do not matter. backend/job/model/model_profile.py computes the same digest.
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return ModelFolder(os.path.dirname(os.path.abspath(path)), config, digest, owner)


def _config_path(name: str) -> str:
    if os.path.isdir(name):
        path = os.path.join(name, "config.json")
        if not os.path.isfile(path):
            raise ProfileError("config_missing", path=path)
        return path
    if os.path.isfile(name):
        return name
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ProfileError("folder_missing", path=name)
    return _cached(name)


def _cached(name: str) -> str:
    """Return the path of a Hugging Face id's config.json in the local cache. This downloads nothing."""
    from huggingface_hub import try_to_load_from_cache

    try:
        path = try_to_load_from_cache(name, "config.json")
    except ValueError as error:
        raise ProfileError("folder_missing", path=name) from error
    if not isinstance(path, str):
        raise ProfileError("not_in_cache", id=name)
    return path
