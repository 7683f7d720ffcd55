"""Fetch a model's config.json from the Hugging Face hub, and check one from the hub or a node before use."""

import json
import re
from collections.abc import Mapping
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)

from app.hub_file import FileTooLargeError, fetch
from app.jobfile import load_json
from backend.job.model import FIELD, ModelShape
from backend.job.problems import Problem, ProblemsError
from backend.job.unestimated import UnestimatedModel, shape_or_reason
from backend.node.config_text import config_fault

FILE = "config.json"
MAXIMUM_BYTES = 128 << 10
"""Largest size of a config.json. Usual files have a few KiB."""
HUB_RESPONSE_S = 5.0
"""Timeout of each response of the hub."""
HUB_TOTAL_S = 30.0
"""Timeout of the whole download: the HTTP library restarts its own timeout with every byte."""

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_MODEL_ID = re.compile(rf"(?:{_PART}/)?{_PART}")
"""The hub's own rule: `name` or `owner/name`. It allows no scheme, host or parent folder."""


def from_hub(model_id: str, *, timeout_s: float = HUB_RESPONSE_S, total_s: float = HUB_TOTAL_S) -> str:
    """Return the config.json of a model id, with the settings of huggingface_hub (HF_ENDPOINT, HF_HUB_OFFLINE, token).

    The file is cached, and read from the cache without a network. Raises ProblemsError: bad_model_id, hub_offline,
    hub_unreachable, model_not_found, model_gated, no_model_config, bad_model_config.
    """
    if not _MODEL_ID.fullmatch(model_id) or re.search(r"\.\.|--", model_id):
        raise _problem("bad_model_id", id=model_id[:100])
    try:
        data = fetch(model_id, FILE, max_bytes=MAXIMUM_BYTES, response_s=timeout_s, total_s=total_s)
        return data.decode("utf-8")
    except FileTooLargeError as error:
        raise _too_large(model_id) from error
    except UnicodeDecodeError as error:
        raise _unusable(model_id, "config_not_text") from error
    except (HTTPError, OSError) as error:
        raise _hub_problem(error, model_id) from error


def read_config(text: str, source: str) -> tuple[Mapping[str, Any], ModelShape | UnestimatedModel]:
    """Return the mapping in a config.json, and its shape or why the model has no estimate.

    Raises ProblemsError(bad_model_config) with the source and the reason.
    """
    if fault := config_fault(text):
        raise _unusable(source, fault["fault"], line=fault["line"], column=fault["column"])
    try:
        config = load_json(text)
    except json.JSONDecodeError as error:
        raise _unusable(source, "config_nested") from error
    try:
        return config, shape_or_reason(config)
    except ProblemsError as error:
        problem = error.problems[0]
        raise _unusable(source, problem.code, **problem.values) from error


def refuse_large(size: int, source: str) -> None:
    """Raise ProblemsError(bad_model_config) for more bytes than MAXIMUM_BYTES."""
    if size > MAXIMUM_BYTES:
        raise _too_large(source)


def pretty(config: Mapping[str, Any]) -> str:
    """Return the config as indented JSON."""
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


def _too_large(source: str) -> ProblemsError:
    return _unusable(source, "config_too_large", kib=MAXIMUM_BYTES >> 10)


def _unusable(source: str, reason: str, **values: object) -> ProblemsError:
    """Return the refusal of a file, with the code of the reason. Its fix depends on the reason."""
    return _problem("bad_model_config", source=source, reason_code=reason, case=reason, **values)


def _problem(code: str, **values: object) -> ProblemsError:
    return ProblemsError([Problem(code=code, field=FIELD, values=values)])
