"""Texts about a parameter, for the help beside a field and for docs/parameters.*.md.

Facts come from the parameter table, versions of keys from backend.engines.known_keys, sentences from the catalogues.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from app.text import LANGUAGES, catalogue, has, t
from backend.engines.known_keys import keys_of, versions
from backend.job.batch import written
from backend.job.cluster import Environment, Host
from backend.job.mapping import parameters
from backend.job.parameters import SOURCES, Parameter, describe
from backend.job.patterns import FORMATS
from backend.job.traits import TRAITS

HOSTS = "cluster.hosts"
ENVIRONMENTS = ("llamafactory", "swift")
GPU_FIGURES: Mapping[str, str] = {"memory_gib": "GiB", "bf16_tflops": "TFLOP/s", "hbm_gb_per_s": "GB/s"}
"""Keys of a GPU that is not a preset, with their units."""
SENTENCES = ("set", "constraint", "memory", "bubble", "speed", "guides")
"""Optional sentences of a parameter in the catalogues, in the order in which they are shown."""
EFFECTS = ("memory", "bubble", "speed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A key of an engine that gets the value of a parameter."""

    reader: str
    """Name of the program that reads it."""
    name: str
    since: str
    """The first version with the key, as a text. Empty if every checked version has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A parameter in one language."""

    path: str
    name: str
    meaning: str
    value: str
    """Type and range."""
    default: str
    """Empty if the value is required, or if the default is to leave it out."""
    source: str
    """Source of the default."""
    address: str
    """URL of the source, or empty."""
    sentences: Mapping[str, str]
    """The sentences that exist, by their names in SENTENCES."""
    keys: tuple[Key, ...]


@cache
def table() -> Mapping[str, Parameter]:
    """Return every parameter of the job file by its path, including those inside its mappings and lists."""
    inner = [
        Parameter(path=f"cluster.gpu.{name}", kind="float", optional=False, required=True, default=None, unit=unit)
        for name, unit in GPU_FIGURES.items()
    ]
    for name in ENVIRONMENTS:
        inner += describe(Environment, f"cluster.environments.{name}.")
    inner += describe(Host, f"{HOSTS}.")
    return {**parameters(), **{item.path: item for item in inner}}


def entry(path: str, lang: str) -> Entry:
    """Return all texts about a parameter. Raises KeyError if there is no such parameter."""
    parameter = table()[path]
    return Entry(
        path=path,
        name=t(lang, f"param.{path}"),
        meaning=t(lang, f"param.{path}.help"),
        value=_value(parameter, lang),
        default="" if parameter.default in (None, (), {}) else _shown(parameter.default),
        source=t(lang, f"param.source.{parameter.source}") if parameter.source else "",
        address=SOURCES[parameter.source] if parameter.source else "",
        sentences=sentences(path, lang),
        keys=tuple(
            Key(reader=t(lang, f"reference.reader.{reader}"), name=name, since=_since(reader, name, lang))
            for reader, names in parameter.keys.items()
            for name in names
        ),
    )


def sentences(path: str, lang: str) -> dict[str, str]:
    """Return the sentences about a parameter, an engine key (`extra.<key>`) or a variable (`environment.<name>`)."""
    return {name: t(lang, key) for name in SENTENCES if has(lang, key := f"param.{path}.{name}")}


def documented(part: str) -> list[str]:
    """Return the engine keys of `extra`, or the names of `environment`, that the catalogues explain, in their order."""
    matches = (re.fullmatch(rf"param\.{part}\.([A-Za-z0-9_]+)\.help", key) for key in catalogue(LANGUAGES[0]))
    return [match[1] for match in matches if match]


def since_words(programs: Iterable[str], key: str, lang: str) -> str:
    """Return `from 0.9.2 on` if the first checked version of a program does not have the key."""
    checked = versions()
    since = [checked[name].since[key] for name in programs if name in checked and key in checked[name].since]
    return t(lang, "reference.since", version=since[0]) if since else ""


def _since(reader: str, key: str, lang: str) -> str:
    programs = {"mcore_adapter": ("mcore_adapter",), "swift": ("swift",)}.get(reader, ("llamafactory", "transformers"))
    is_configuration = any(key in keys_of(engine) for engine in TRAITS)
    return since_words(programs, key, lang) if is_configuration else ""


def _value(parameter: Parameter, lang: str) -> str:
    parts = [_kind(parameter, lang), _range(parameter, lang)]
    if parameter.required:
        parts.append(t(lang, "reference.required"))
    elif parameter.optional:
        parts.append(t(lang, "reference.or_null"))
    return t(lang, "reference.join").join(part for part in parts if part)


def _kind(parameter: Parameter, lang: str) -> str:
    if parameter.path == "cluster.gpu":
        return t(lang, "reference.kind.gpu")
    if parameter.pattern in FORMATS and parameter.kind == "str":
        return t(lang, f"reference.format.{FORMATS[parameter.pattern]}")
    kind = "some" if parameter.kind == "list" and parameter.choices else parameter.kind
    return t(lang, f"reference.kind.{kind}", choices=", ".join(parameter.choices))


def _range(parameter: Parameter, lang: str) -> str:
    values = {name: _shown(getattr(parameter, name)) for name in ("minimum", "maximum", "above")}
    unit = unit_words(lang, parameter.unit) if parameter.unit else ""
    named = {"least": values["minimum"], "most": values["maximum"], "above": values["above"]}
    if parameter.above is not None:
        words = t(lang, "reference.above" if parameter.maximum is None else "reference.above_range", **named)
    elif parameter.minimum is not None:
        words = t(lang, "reference.least" if parameter.maximum is None else "reference.range", **named)
    else:
        return unit
    if parameter.minimum is not None and parameter.minimum == parameter.maximum:
        return ""
    return f"{words} {unit}" if unit else words


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return written(value, 6)
    return ", ".join(str(item) for item in value) if isinstance(value, tuple) else str(value)


def unit_words(lang: str, unit: str) -> str:
    """Return a unit in the user's language. Units that are equal in all languages have no text."""
    key = f"unit.{unit}"
    return t(lang, key) if has(lang, key) else unit
