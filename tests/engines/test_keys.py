"""Engine keys and defaults of the parameter table, compared with the engines' own argument classes."""

from typing import Any

import pytest

from backend.engines.keys import owned_keys
from backend.engines.known_keys import keys_of, programs
from backend.job.mapping import parameters
from backend.job.parameters import SOURCES, Parameter, Reader
from backend.job.traits import TRAITS, EngineTraits

CONFIGURATION = {"llamafactory", "hugging_face", "mcore_adapter", "swift"}
"""Readers whose keys are in config.yaml; the others read deepspeed.json and variables."""
PROGRAMS = {"transformers": "transformers", "llamafactory": "llamafactory", "mcore_adapter": "mcore_adapter",
            "swift": "swift"}  # fmt: skip
# They write "no" as 0 or nothing, and 1 as nothing.
NOTHING: dict[Any, Any] = {False: None, 1: None}


def readers_of(traits: EngineTraits) -> tuple[Reader, ...]:
    """Return the readers of a job of this engine."""
    if traits.environment == "swift":
        return ("swift",)
    if traits.is_megatron:
        return ("llamafactory", "mcore_adapter")
    beside: tuple[Reader, ...] = ("deepspeed",) if traits.zero_stage else ("accelerate",) if traits.is_fsdp else ()
    return ("llamafactory", "hugging_face", *beside)


@pytest.mark.parametrize("engine", TRAITS)
def test_every_key_of_a_parameter_is_one_that_its_engine_takes(engine: str) -> None:
    keys = owned_keys(*(reader for reader in readers_of(TRAITS[engine]) if reader in CONFIGURATION))
    assert keys.keys() - keys_of(engine).keys() == set()


@pytest.mark.parametrize("engine", TRAITS)
def test_no_key_belongs_to_two_parameters(engine: str) -> None:
    readers = readers_of(TRAITS[engine])
    named = [key for item in parameters().values() for reader in readers for key in item.keys.get(reader, ())]
    assert len(named) == len(set(named))


def test_every_default_says_where_it_is_from() -> None:
    free = (None, (), {})
    unexplained = [item.path for item in parameters().values() if item.default not in free and not item.source]
    assert unexplained == []
    assert {item.source for item in parameters().values() if item.source} <= SOURCES.keys()


@pytest.mark.parametrize(
    "parameter", [item for item in parameters().values() if item.source in PROGRAMS], ids=lambda item: item.path
)
def test_a_default_that_is_said_to_be_an_engines_is(parameter: Parameter) -> None:
    known = programs()[PROGRAMS[parameter.source or ""]].keys
    named = {key for keys in parameter.keys.values() for key in keys if key in known}
    assert named
    own = parameter.default
    defaults = [known[key].default for key in named]
    assert any(_plain(entry) in (_plain(own), _same(parameter, own)) for entry in defaults), defaults


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _same(parameter: Parameter, own: Any) -> Any:
    """Return the value in the form of the program's own default."""
    if parameter.path == "training.lora.alpha":
        return None  # This is twice the rank, whose default is 8.
    return NOTHING.get(own, own)
