"""Model profiles of the presets: what torch counts in the model that transformers builds of a preset's config.

The node's own program (backend/node/model_profile) made them, so each has the digest of its config, the versions of
torch and transformers, and all that a node would tell. tools/write_profiles.py writes them.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from backend.job.data_folder import data_folder

_OF_ONE_RUN = ("cpu_seconds", "measured")
"""Keys of a profile that are not stored: how long it took, and the meaning of the figures (model_profile/main.py)."""


def profile_path(key: str) -> Path:
    """Return the file of a preset's profile."""
    return data_folder("presets") / "profiles" / f"{key}.json.gz"


def packed(profile: Mapping[str, Any]) -> bytes:
    """Return the content of the file of a profile; the same bytes for the same profile."""
    stored = {name: value for name, value in profile.items() if name not in _OF_ONE_RUN}
    return gzip.compress(json.dumps(stored, separators=(",", ":")).encode(), mtime=0)


@cache
def preset_profile(key: str) -> Mapping[str, Any]:
    """Return the profile of a preset; empty if none ships with it."""
    path = profile_path(key)
    if not path.exists():
        return {}
    profile: Mapping[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return profile


def linear_names(profile: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the linear layers that adapters may name, each once, in the order of the model."""
    return tuple(dict.fromkeys(path.rpartition(".")[2] for path in _linear_paths(profile)))


def unknown_modules(profile: Mapping[str, Any], names: list[str]) -> list[str]:
    """Return the names that are the end of no module's path, as peft compares them (peft 0.18.1 tuners_utils.py
    check_target_module_exists). A name with numbers in its path is not judged: a profile has none."""
    paths = [f".{path}" for path in (*_linear_paths(profile), *_outside_paths(profile))]
    judged = [name for name in names if not any(part.isdigit() for part in name.split("."))]
    return [name for name in judged if not any(path.endswith(f".{name}") for path in paths)]


def _linear_paths(profile: Mapping[str, Any]) -> Iterator[str]:
    for kind in profile["kinds"]:
        yield from kind["linears"]


def _outside_paths(profile: Mapping[str, Any]) -> Iterator[str]:
    for module in profile["outside"]:
        yield str(module["module"])
