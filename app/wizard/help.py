"""The help of a field: the meaning of a parameter, and the effect of its other values on the draft's job.

A page requests it when the user opens it, not with an edit.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.text import t
from app.text.plans import problem_words
from app.text.reference import EFFECTS, Entry, documented, entry, sentences
from app.wizard.draft_state import DraftState
from app.wizard.fields import table, value_words
from backend.engines import ENGINES
from backend.engines.checks import check_passed_on
from backend.engines.known_keys import keys_of
from backend.job.mapping import parameters
from backend.job.problems import ProblemsError
from backend.job.rules.extra import is_ignored
from backend.planning.effects import Effect, effects


def help_of(state: DraftState, path: str, lang: str) -> dict[str, Any]:
    """Return the words and figures of one field. Raises KeyError for an unknown parameter."""
    doc = entry(path.removesuffix(".lines"), lang)
    return {
        "name": doc.name,
        "path": doc.path,
        "meaning": doc.meaning,
        "facts": _sentences(doc, ("set", "constraint"), lang),
        "effects": _sentences(doc, EFFECTS, lang),
        "guides": doc.sentences.get("guides", ""),
        "values": _values(doc, lang),
        "keys": [(key.reader, key.name, key.since) for key in doc.keys],
        "names": _names(state, doc.path, lang),
        **_effects(state, doc, lang),
    }


def _sentences(doc: Entry, names: Iterable[str], lang: str) -> list[tuple[str, str]]:
    return [(t(lang, f"reference.fact.{name}"), doc.sentences[name]) for name in names if name in doc.sentences]


def _names(state: DraftState, part: str, lang: str) -> list[tuple[str, str]]:
    """Return (name, words) of the keys that the draft may set in `extra` for its engine, or in `environment`."""
    if part not in ("extra", "environment") or state.job is None:
        return []
    engine, names = state.job.engine, documented(part)
    if part == "extra":
        traits = state.job.traits
        names = [name for name in names if name in keys_of(engine) and not is_ignored(name, traits)]
    values = dict.fromkeys(names, None if part == "extra" else "1")
    job_with_names = replace(state.job, **{part: values})  # type: ignore[arg-type]
    refused = {problem.field for problem in check_passed_on(job_with_names, ENGINES[engine])}
    return [(name, _brief(f"{part}.{name}", lang)) for name in names if f"{part}.{name}" not in refused]


def _brief(path: str, lang: str) -> str:
    words = sentences(path, lang)
    parts = [t(lang, f"param.{path}.help"), *(words[name] for name in ("set", "constraint") if name in words)]
    return ("" if lang == "zh" else " ").join(parts)


def _values(doc: Entry, lang: str) -> list[tuple[str, str]]:
    values = [(t(lang, "reference.fact.value"), doc.value)]
    if doc.default:
        default = t(lang, "reference.default", value=doc.default, source=doc.source)
        values.append((t(lang, "reference.fact.default"), default))
    return values


def _effects(state: DraftState, doc: Entry, lang: str) -> dict[str, Any]:
    """Return `rows` of values with their figures, or `why` there are none. Both are empty without effects."""
    if doc.path not in parameters() or not any(name in doc.sentences for name in EFFECTS):
        return {"rows": [], "why": ""}
    if state.job is None or not state.is_sound:
        return {"rows": [], "why": t(lang, "wizard.help.unsound")}
    try:
        items = effects(state.job, doc.path)
    except ProblemsError as error:
        return {"rows": [], "why": problem_words(lang, error.problems[0])}
    if items is None:
        return {"rows": [], "why": ""}
    if not items:
        return {"rows": [], "why": t(lang, "wizard.help.unmoved")}
    own = next(item for item in items if item.is_own)
    columns = [name for name, value in _COLUMNS.items() if any(value(item) != value(own) for item in items
               if not item.problem) or (name == "host" and any(item.over_host_gib for item in items))]  # fmt: skip
    return {"rows": [_row(item, lang) for item in items], "columns": ["memory", "speed", *columns], "why": ""}


_COLUMNS: Mapping[str, Callable[[Effect], float]] = {
    "bubble": lambda item: round(item.bubble_fraction, 3),
    "host": lambda item: round(item.host_gib, 1),
    "batch": lambda item: item.global_batch,
}
"""Columns that are shown if their values differ. RAM is also shown if it does not suffice."""


def _row(item: Effect, lang: str) -> dict[str, Any]:
    path = next(iter(item.edits))
    return {
        "value": value_words(lang, table()[path], item.value),
        "own": item.is_own,
        "problem": problem_words(lang, item.problem) if item.problem else "",
        "edits": {name: list(value) if isinstance(value, tuple) else value for name, value in item.edits.items()},
        "over": [name for name, gib in (("memory", item.over_gib), ("host", item.over_host_gib)) if gib],
        "memory": item.memory_gib,
        "speed": item.tokens_per_s_per_gpu,
        "bubble": item.bubble_fraction,
        "host": item.host_gib,
        "batch": item.global_batch,
    }
