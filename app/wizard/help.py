"""The help beside a field: what a parameter means, and what other values of it do to the job in the draft.

Asked for when somebody opens it, never with an edit.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.text import t
from app.text.plans import problem_words
from app.text.reference import EFFECTS, Entry, documented, entry, sentences
from app.wizard.draft_state import Reading
from app.wizard.fields import table, value_words
from backend.engines import ENGINES
from backend.engines.checks import check_passed_on
from backend.engines.known_keys import keys_of
from backend.job.mapping import parameters
from backend.job.problems import ProblemsError
from backend.job.rules.extra import is_ignored
from backend.planning.effects import Effect, effects


def help_of(reading: Reading, path: str, lang: str) -> dict[str, Any]:
    """Words and figures of one field; KeyError for what is no parameter."""
    found = entry(path.removesuffix(".lines"), lang)
    return {
        "name": found.name,
        "path": found.path,
        "meaning": found.meaning,
        "facts": _sentences(found, ("set", "constraint"), lang),
        "effects": _sentences(found, EFFECTS, lang),
        "guides": found.sentences.get("guides", ""),
        "values": _values(found, lang),
        "keys": [(key.reader, key.name, key.since) for key in found.keys],
        "names": _names(reading, found.path, lang),
        **_here(reading, found, lang),
    }


def _sentences(found: Entry, names: Iterable[str], lang: str) -> list[tuple[str, str]]:
    return [(t(lang, f"reference.fact.{name}"), found.sentences[name]) for name in names if name in found.sentences]


def _names(reading: Reading, part: str, lang: str) -> list[tuple[str, str]]:
    """What the draft may say in `extra` to its engine, or in `environment`, each with its words."""
    if part not in ("extra", "environment") or reading.job is None:
        return []
    engine, names = reading.job.engine, documented(part)
    if part == "extra":
        traits = reading.job.traits
        names = [name for name in names if name in keys_of(engine) and not is_ignored(name, traits)]
    values = dict.fromkeys(names, None if part == "extra" else "1")
    said = replace(reading.job, **{part: values})  # type: ignore[arg-type]
    refused = {problem.field for problem in check_passed_on(said, ENGINES[engine])}
    return [(name, _brief(f"{part}.{name}", lang)) for name in names if f"{part}.{name}" not in refused]


def _brief(path: str, lang: str) -> str:
    said = sentences(path, lang)
    parts = [t(lang, f"param.{path}.help"), *(said[name] for name in ("set", "constraint") if name in said)]
    return ("" if lang == "zh" else " ").join(parts)


def _values(found: Entry, lang: str) -> list[tuple[str, str]]:
    values = [(t(lang, "reference.fact.value"), found.value)]
    if found.default:
        default = t(lang, "reference.default", value=found.default, source=found.source)
        values.append((t(lang, "reference.fact.default"), default))
    return values


def _here(reading: Reading, found: Entry, lang: str) -> dict[str, Any]:
    """`rows` of values with their figures, or `why` there are none; neither where there is nothing to compute."""
    if found.path not in parameters() or not any(name in found.sentences for name in EFFECTS):
        return {"rows": [], "why": ""}
    if reading.job is None or not reading.is_sound:
        return {"rows": [], "why": t(lang, "wizard.help.unsound")}
    try:
        tried = effects(reading.job, found.path)
    except ProblemsError as error:
        return {"rows": [], "why": problem_words(lang, error.problems[0])}
    if tried is None:
        return {"rows": [], "why": ""}
    if not tried:
        return {"rows": [], "why": t(lang, "wizard.help.unmoved")}
    own = next(item for item in tried if item.is_own)
    columns = [name for name, of in _COLUMNS.items() if any(of(item) != of(own) for item in tried if not item.problem)
               or (name == "host" and any(item.over_host_gib for item in tried))]  # fmt: skip
    return {"rows": [_row(item, lang) for item in tried], "columns": ["memory", "speed", *columns], "why": ""}


_COLUMNS: Mapping[str, Callable[[Effect], float]] = {
    "bubble": lambda item: round(item.bubble_fraction, 3),
    "host": lambda item: round(item.host_gib, 1),
    "batch": lambda item: item.global_batch,
}
"""Columns that are shown where they differ, and RAM where it does not suffice."""


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
