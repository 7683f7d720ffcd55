"""The configuration keys of each engine's program, from its own argument classes.

tools/write_engine_keys.py writes presets/engine_keys.yaml: it asks the installed programs. A preflight asks those on
the nodes. presets/key_versions.yaml says since which version a program has a key; tools/write_key_versions.py writes
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from backend.job.data_folder import data_folder
from backend.job.traits import TRAITS


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineKey:
    """One key of an engine's configuration."""

    type: str
    """In Python's notation, `float | None`."""
    default: Any = None
    """The program's default; None too if the key is required."""
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program that defines keys."""

    version: str
    keys: Mapping[str, EngineKey]


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    """The versions of a program whose keys are known."""

    examined: tuple[str, ...]
    """Oldest first."""
    since: Mapping[str, str]
    """Key -> the first version that has it, without keys that all versions have."""


@cache
def programs() -> Mapping[str, Program]:
    """Return every program by name: llamafactory, transformers, llamafactory_trainer, mcore_adapter, ..."""
    return {
        name: Program(version=entry["version"], keys=_keys(entry["keys"]))
        for name, entry in _loaded("engine_keys.yaml").items()
    }


@cache
def versions() -> Mapping[str, Versions]:
    """Return the versions by program: llamafactory, transformers, mcore_adapter, swift."""
    return {
        name: Versions(examined=tuple(entry["examined"]), since=entry["since"])
        for name, entry in _loaded("key_versions.yaml").items()
    }


@cache
def keys_of(engine: str) -> Mapping[str, EngineKey]:
    """Return every key of an engine."""
    return {key: entry for name in programs_of(engine) for key, entry in programs()[name].keys.items()}


def programs_of(engine: str) -> tuple[str, ...]:
    """Return the programs whose argument classes an engine uses to read its configuration."""
    traits = TRAITS[engine]
    if traits.environment == "swift":
        return ("swift",) if traits.is_megatron else ("swift_trainer",)
    # LLaMA-Factory's own trainer arguments are unknown under USE_MCA=1.
    return ("llamafactory", "transformers", "mcore_adapter" if traits.is_megatron else "llamafactory_trainer")


def read_key(entry: Mapping[str, Any]) -> EngineKey:
    """Return a key from an entry of the file or of a node's answer."""
    return EngineKey(type=entry["type"], default=entry.get("default"), choices=tuple(entry.get("choices", ())))


def type_names(key: EngineKey) -> frozenset[str]:
    """Return the types of a key one by one: `float | None` as float and None."""
    return frozenset(name.strip() for name in key.type.split("|"))


def intended_value(value: Any, key: EngineKey) -> Any:
    """Return the value that the user intended: YAML reads `no` as False, PyYAML `2e-5` as text, digits as a number."""
    names = type_names(key)
    if value is False and "no" in key.choices:
        return "no"
    if isinstance(value, str) and "str" not in names and not key.choices:
        return _number(value, names)
    if isinstance(value, float) and value.is_integer() and "int" in names and "float" not in names:
        return int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number and names <= {"str", "None"} else value


def _number(text: str, names: frozenset[str]) -> Any:
    if text.lower() in ("true", "false") and "bool" in names:
        return text.lower() == "true"
    if not names & {"float", "int"}:
        return text
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() and "float" not in names else number


def _loaded(name: str) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = (data_folder("presets") / name).read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=loader)  # noqa: S506 - a safe one
    return loaded


def _keys(entries: Mapping[str, Mapping[str, Any]]) -> Mapping[str, EngineKey]:
    return {name: read_key(entry) for name, entry in entries.items()}
