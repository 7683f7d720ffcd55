"""A model's config.json from elsewhere: from the Hugging Face hub by id, or read on a node; checked before use."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)

from app.jobfile import load_json
from backend.job.model import FIELD, ModelShape, parse_model
from backend.job.problems import Problem, ProblemsError

FILE = "config.json"
MAXIMUM_BYTES = 128 << 10
"""Real ones hold a few KiB."""
HUB_TIMEOUT_S = 5.0
"""For the hub's first answer; HF_HUB_DOWNLOAD_TIMEOUT is what its library grants the few KiB that follow."""

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_MODEL_ID = re.compile(rf"(?:{_PART}/)?{_PART}")
"""The hub's own rule, which leaves no room for a scheme, a host or a way up: `name` or `owner/name`."""


def from_hub(model_id: str, *, timeout_s: float = HUB_TIMEOUT_S) -> str:
    """The config.json of a model id, through huggingface_hub and its settings (HF_ENDPOINT, HF_HUB_OFFLINE, the token).

    It lands in the hub's cache, from where it comes when there is no network. Raises ProblemsError: bad_model_id,
    hub_offline, hub_unreachable, model_not_found, model_gated, no_model_config, bad_model_config.
    """
    if not _MODEL_ID.fullmatch(model_id) or re.search(r"\.\.|--", model_id):
        raise _problem("bad_model_id", id=model_id[:100])
    try:
        path = _fetched(model_id, timeout_s)
        refuse_large(path.stat().st_size, model_id)
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _problem("bad_model_config", source=model_id, reason="not UTF-8") from error
    except (HTTPError, OSError) as error:
        raise _hub_problem(error, model_id) from error


def _fetched(model_id: str, timeout_s: float) -> Path:
    """The newest file, or the cached one where the hub cannot be asked; asked once, where the library would 7 times."""
    try:
        found = get_hf_file_metadata(hf_hub_url(model_id, FILE), timeout=timeout_s)
    except (RepositoryNotFoundError, RemoteEntryNotFoundError):
        raise
    except (HTTPError, OSError):
        cached = try_to_load_from_cache(model_id, FILE)
        if not isinstance(cached, str):
            raise
        return Path(cached)
    refuse_large(found.size or 0, model_id)
    return Path(hf_hub_download(model_id, FILE, etag_timeout=timeout_s))


def read_config(text: str, source: str) -> tuple[Mapping[str, Any], ModelShape]:
    """The mapping in a config.json, and its shape. Raises ProblemsError: bad_model_config, or parse_model's."""
    try:
        config = load_json(text)
    except json.JSONDecodeError as error:
        raise _problem("bad_model_config", source=source, reason=f"line {error.lineno}: {error.msg}") from error
    if not isinstance(config, dict):
        raise _problem("bad_model_config", source=source, reason="{ expected")
    return config, parse_model(config)


def refuse_large(size: int, source: str) -> None:
    """Raises ProblemsError(bad_model_config) for more than any config.json needs."""
    if size > MAXIMUM_BYTES:
        raise _problem("bad_model_config", source=source, reason=f"> {MAXIMUM_BYTES >> 10} KiB")


def pretty(config: Mapping[str, Any]) -> str:
    """The config as people read it."""
    return json.dumps(config, indent=2, ensure_ascii=False)


def _hub_problem(error: Exception, model_id: str) -> ProblemsError:
    hub = constants.ENDPOINT
    if isinstance(error, OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        return _problem("hub_offline", id=model_id)
    if isinstance(error, GatedRepoError):
        return _problem("model_gated", id=model_id, hub=hub)
    if isinstance(error, RepositoryNotFoundError):
        return _problem("model_not_found", id=model_id, hub=hub)
    if isinstance(error, RemoteEntryNotFoundError):
        return _problem("no_model_config", id=model_id, hub=hub)
    status = isinstance(error, HfHubHTTPError) and error.response.status_code
    reason = f"HTTP {status}" if status else str(error).partition("\n")[0][:200] or type(error).__name__
    return _problem("hub_unreachable", hub=hub, reason=reason)


def _problem(code: str, **values: object) -> ProblemsError:
    return ProblemsError([Problem(code=code, field=FIELD, values=values)])
