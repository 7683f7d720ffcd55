"""Words for users: flat catalogues, one a language, looked up by key.

`en.json` and `zh.json` beside this file hold the words; keys and placeholders are equal in both (a test compares them).
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
    """The words of `key` in `lang`, with `{name}` placeholders filled from `values`.

    A missing key or placeholder must not take a page down: it is logged once and the key itself is shown.
    Tests set MEGABOARD_STRICT_WORDS=1, which makes it a KeyError.
    """
    try:
        return catalogue(lang)[key].format(**{name: _text(value) for name, value in values.items()})
    except KeyError:
        if os.environ.get(STRICT_VARIABLE) == "1":
            raise
        _log_once(lang, key)
        return key


def has(lang: str, key: str) -> bool:
    """Whether `key` has words in `lang`; for the few words that are optional, such as a field's help."""
    return key in catalogue(lang)


def render_problem(lang: str, problem: "Problem") -> dict[str, str]:
    """A problem in the user's language: code, field, message, fix, severity, and node or reason where known.

    What stands between backticks is a command, which the page offers to copy: a backtick of a value, such as the name
    of somebody's file, becomes a look-alike, or it would make commands of its own.
    """
    given = {"field": problem.field, "node": problem.node or "", **problem.values}
    if has(lang, key := f"monitor.state.{given.get('state')}"):
        given["state"] = t(lang, key)
    if has(lang, key := f"problem.{given.get('reason_code')}"):
        given["why"] = t(lang, key, **given)
    values = {name: str(_text(value)).replace("`", "\u02cb") for name, value in given.items()}
    rendered = {
        "code": problem.code,
        "field": problem.field,
        "message": t(lang, f"problem.{problem.code}", **values),
        "fix": t(lang, _fix_key(lang, problem), **values),
        "severity": problem.severity,
    }
    further = {"node": problem.node, "reason": problem.values.get("reason_code")}
    return {**rendered, **{name: str(value) for name, value in further.items() if value}}


def _fix_key(lang: str, problem: "Problem") -> str:
    """Texts of different formats, values of different types, and different cases want different advice."""
    key = f"problem.{problem.code}.fix"
    kind = next((problem.values[name] for name in ("format", "expected", "case") if problem.values.get(name)), None)
    of_kind = f"{key}.{kind}"
    return of_kind if has(lang, of_kind) else key


@cache
def catalogue(lang: str) -> Mapping[str, str]:
    """All words of one language; ValueError for a language there is no catalogue of."""
    if lang not in LANGUAGES:
        raise ValueError(f"no catalogue for language {lang!r}")
    words: dict[str, str] = json.loads((FOLDER / f"{lang}.json").read_text(encoding="utf-8"))
    return words


_EXACT = 2**53
"""Up to here a number without a fraction is written without one: nobody typed the .0 of -1.0."""


def _text(value: object) -> object:
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(str(item) for item in value)
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


@lru_cache(maxsize=4096)
def _log_once(lang: str, key: str) -> None:
    _log.warning("words missing: language=%s key=%s", lang, key)
