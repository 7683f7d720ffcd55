"""A model's config.json from elsewhere: from the Hugging Face hub by id, or read on a node; checked before use."""

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

from app.hub_file import TooLarge, fetch
from app.jobfile import load_json
from backend.job.model import FIELD, ModelShape
from backend.job.problems import Problem, ProblemsError
from backend.job.unestimated import UnestimatedModel, shape_or_reason

FILE = "config.json"
MAXIMUM_BYTES = 128 << 10
"""Real ones hold a few KiB."""
HUB_TIMEOUT_S = 5.0
"""For each answer of the hub."""
HUB_WHOLE_S = 30.0
"""For the whole of it: a time-out of the HTTP library begins anew with every byte."""

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_MODEL_ID = re.compile(rf"(?:{_PART}/)?{_PART}")
"""The hub's own rule, which leaves no room for a scheme, a host or a way up: `name` or `owner/name`."""


def from_hub(model_id: str, *, timeout_s: float = HUB_TIMEOUT_S, whole_s: float = HUB_WHOLE_S) -> str:
    """The config.json of a model id, by huggingface_hub's settings (HF_ENDPOINT, HF_HUB_OFFLINE, the token).

    It lands in the hub's cache, from where it comes when there is no network. Raises ProblemsError: bad_model_id,
    hub_offline, hub_unreachable, model_not_found, model_gated, no_model_config, bad_model_config.
    """
    if not _MODEL_ID.fullmatch(model_id) or re.search(r"\.\.|--", model_id):
        raise _problem("bad_model_id", id=model_id[:100])
    try:
        data = fetch(model_id, FILE, most_bytes=MAXIMUM_BYTES, answer_s=timeout_s, whole_s=whole_s)
        return data.decode("utf-8")
    except TooLarge as error:
        raise _too_large(model_id) from error
    except UnicodeDecodeError as error:
        raise _problem("bad_model_config", source=model_id, reason="not UTF-8") from error
    except (HTTPError, OSError) as error:
        raise _hub_problem(error, model_id) from error


def read_config(text: str, source: str) -> tuple[Mapping[str, Any], ModelShape | UnestimatedModel]:
    """The mapping in a config.json, and its shape, or why it has no estimate.

    Raises ProblemsError: bad_model_config, or shape_or_reason's.
    """
    try:
        config = load_json(text)
    except json.JSONDecodeError as error:
        raise _problem("bad_model_config", source=source, reason=f"line {error.lineno}: {error.msg}") from error
    if not isinstance(config, dict):
        raise _problem("bad_model_config", source=source, reason="{ expected")
    return config, shape_or_reason(config)


def refuse_large(size: int, source: str) -> None:
    """Raises ProblemsError(bad_model_config) for more than any config.json needs."""
    if size > MAXIMUM_BYTES:
        raise _too_large(source)


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


def _too_large(source: str) -> ProblemsError:
    return _problem("bad_model_config", source=source, reason=f"> {MAXIMUM_BYTES >> 10} KiB")


def _problem(code: str, **values: object) -> ProblemsError:
    return ProblemsError([Problem(code=code, field=FIELD, values=values)])
