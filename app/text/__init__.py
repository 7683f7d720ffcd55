"""Texts for users: one flat catalogue a language.

`en.json` and `zh.json` beside this file have the same keys and placeholders. A test compares them.
"""

import json
import logging
import os
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backend.job.problems import Problem

LANGUAGES = ("en", "zh")

FOLDER = Path(__file__).parent
STRICT_VARIABLE = "MEGABOARD_STRICT_WORDS"

_log = logging.getLogger(__name__)


def t(lang: str, key: str, /, **values: object) -> str:
    """Return the text of `key` in `lang`, with its `{name}` placeholders replaced by `values`.

    A missing key or placeholder is logged once, and the text is the key itself, so that the page still works. Tests set
    MEGABOARD_STRICT_WORDS=1. Then it raises KeyError.
    """
    try:
        return catalogue(lang)[key].format(**{name: _text(value) for name, value in values.items()})
    except KeyError:
        if os.environ.get(STRICT_VARIABLE) == "1":
            raise
        _log_once(lang, key)
        return key


def has(lang: str, key: str) -> bool:
    """Return whether `key` has a text in `lang`. A few texts are optional, such as the help of a field."""
    return key in catalogue(lang)


def render_problem(lang: str, problem: "Problem") -> dict[str, str]:
    """Return a problem in the user's language: code, field, message, fix, severity, and node or reason if known.

    The page offers to copy text between backticks as a command. A value, such as the name of a file, adds no commands.
    """
    values = {"field": problem.field, "node": problem.node or "", **problem.values}
    if has(lang, key := f"monitor.state.{values.get('state')}"):
        values["state"] = t(lang, key)
    if has(lang, key := f"problem.{values.get('reason_code')}"):
        values["why"] = t(lang, key, **values)
    texts = {name: without_commands(str(_text(value))) for name, value in values.items()}
    rendered = {
        "code": problem.code,
        "field": problem.field,
        "message": t(lang, f"problem.{problem.code}", **texts),
        "fix": t(lang, _fix_key(lang, problem), **texts),
        "severity": problem.severity,
    }
    further = {"node": problem.node, "reason": problem.values.get("reason_code")}
    return {**rendered, **{name: str(value) for name, value in further.items() if value}}


def without_commands(text: str) -> str:
    """Return the text with a similar character in place of backticks, so that the page shows no command in it."""
    return text.replace("`", "\u02cb")


def _fix_key(lang: str, problem: "Problem") -> str:
    """Return the key of the fix. It may depend on the format, expected type or case of the problem."""
    key = f"problem.{problem.code}.fix"
    kind = next((problem.values[name] for name in ("format", "expected", "case") if problem.values.get(name)), None)
    of_kind = f"{key}.{kind}"
    return of_kind if has(lang, of_kind) else key


@cache
def catalogue(lang: str) -> Mapping[str, str]:
    """Return all texts of a language. Raises ValueError if it has no catalogue."""
    if lang not in LANGUAGES:
        raise ValueError(f"no catalogue for language {lang!r}")
    words: dict[str, str] = json.loads((FOLDER / f"{lang}.json").read_text(encoding="utf-8"))
    return words


_EXACT = 2**53
"""Whole floats below this are written without the .0, because users do not type it."""


def _text(value: object) -> object:
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(str(item) for item in value)
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


@lru_cache(maxsize=4096)
def _log_once(lang: str, key: str) -> None:
    _log.warning("text missing: language=%s key=%s", lang, key)
