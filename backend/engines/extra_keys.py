"""Check of keys of `extra` against the argument classes of an engine's programs.

LLaMA-Factory reads its file with HfArgumentParser.parse_dict. It refuses unknown keys, but checks neither types nor
choices: `1e-8`, text to PyYAML, fails at the first step. A key or a choice that is unknown here may belong to a version
that was not examined. So it is a warning, and the preflight asks the installed version.
"""

import difflib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from backend.engines.known_keys import EngineKey, intended_value, keys_of, programs_of, type_names, versions
from backend.job.job import Job
from backend.job.problems import Problem, quoted

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "str": str, "int": int, "float": (int, float), "bool": bool, "list": (list, tuple), "dict": Mapping,
}  # fmt: skip


def check_known(job: Job, key: str, value: Any) -> Problem | None:
    """Return why the examined versions refuse the key or its value."""
    keys = keys_of(job.engine)
    if key not in keys:
        return _unknown(job, key, value)
    entry = keys[key]
    meaning = intended_value(value, entry)
    field = f"extra.{key}"
    # ms-swift's own command line receives text anyway.
    if not _fits(meaning if job.traits.environment == "swift" else value, entry, job):
        edit = _with(job, key, key, meaning) if _fits(meaning, entry, job) else _without(job, key)
        values = {"key": key, "expected": entry.type, "value": quoted(value)}
        return Problem(code="extra_wrong_type", field=field, values=values, edit=edit)
    texts = tuple(choice for choice in entry.choices if isinstance(choice, str))
    if value is None or not texts or len(texts) < len(entry.choices) or value in texts:
        return None
    similar = difflib.get_close_matches(str(meaning), texts, n=1)
    values = {"key": key, "value": quoted(value), "choices": ", ".join(texts)}
    edit = _with(job, key, key, similar[0]) if similar else _without(job, key)
    return Problem(code="extra_not_a_choice", field=field, severity="warning", values=values, edit=edit)


def _unknown(job: Job, key: str, value: Any) -> Problem:
    similar = [name for name in _similar_keys(job.engine, key) if name not in job.extra]
    examined = (f"{name} {versions()[name].examined[-1]}" for name in programs_of(job.engine) if name in versions())
    values = {"key": key, "engine": job.engine, "versions": ", ".join(examined)}
    if not similar:
        return Problem(code="extra_unknown", field=f"extra.{key}", severity="warning", values=values,
                       edit=_without(job, key))  # fmt: skip
    return Problem(code="extra_unknown_near", field=f"extra.{key}", severity="warning",
                   values={**values, "near": similar[0]}, edit=_with(job, key, similar[0], value))  # fmt: skip


@lru_cache(maxsize=64)
def _similar_keys(engine: str, key: str) -> tuple[str, ...]:
    """Return known keys with a similar spelling. Cached: it compares hundreds of keys at every edit."""
    return tuple(difflib.get_close_matches(key, keys_of(engine), n=3, cutoff=0.8))


def _fits(value: Any, entry: EngineKey, job: Job) -> bool:
    """Return whether a value has the key's type. Null omits a key everywhere, whatever the class says."""
    names = type_names(entry)
    if value is None or not names <= _TYPES.keys() | {"None"}:
        return True
    if isinstance(value, bool):
        # Switches of transformers that also accept a word, such as eval_strategy's `no`.
        return "bool" in names or (value is False and "no" in entry.choices)
    is_swift = job.traits.environment == "swift"
    if isinstance(value, list | tuple) and "str" in names and not is_swift:
        return True  # LLaMA-Factory splits text at commas, and leaves lists unchanged.
    if isinstance(value, str) and "list" in names and is_swift:
        return True
    return any(isinstance(value, _TYPES[name]) for name in names - {"None"})


def _with(job: Job, old: str, key: str, value: Any) -> dict[str, object]:
    items = (((key, value) if name == old else (name, present)) for name, present in job.extra.items())
    return {"extra": dict(items)}


def _without(job: Job, key: str) -> dict[str, object]:
    return {"extra": {name: value for name, value in job.extra.items() if name != key}}
