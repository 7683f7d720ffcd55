"""Part of the program engine_args.py: the keys that the installed engine takes, by program: type, default, choices."""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import os
import types
import typing
from typing import Any

from .swift_arguments import swift_class, swift_trainer_class

PLAIN = (bool, int, float, str, list, dict, type(None))
"""Types of a default that JSON can hold."""


def programs_of(engine: str) -> dict[str, Any]:
    """Return `keys`, for comparison with the known keys. Empty for an unknown version."""
    try:
        return KEYS[engine]()
    except (ImportError, AttributeError, TypeError):
        return {}


def keys_of_swift() -> dict[str, Any]:
    """Return the keys of ms-swift's Megatron (`swift`) or of its Hugging Face trainers (`swift_trainer`)."""
    program = os.environ.get("MEGABOARD_TRAINER", "swift").partition("-")[0]
    class_of = swift_class if program == "swift" else swift_trainer_class
    fields = {name: key for command in ("sft", "pt", "rlhf") for name, key in fields_of(class_of(command)).items()}
    return {program: {"version": version_of("ms-swift"), "keys": dict(sorted(fields.items()))}}


def keys_of_llamafactory() -> dict[str, Any]:
    import transformers
    from llamafactory import hparams
    from llamafactory.hparams.training_args import TrainingArguments

    own = (hparams.ModelArguments, hparams.DataArguments, hparams.FinetuningArguments, hparams.GeneratingArguments)
    parts = {"transformers": fields_of(transformers.TrainingArguments), "llamafactory": fields_of(*own)}
    versions = {"transformers": transformers.__version__, "llamafactory": importlib.metadata.version("llamafactory")}
    if os.environ.get("USE_MCA") == "1":
        import mcore_adapter.training_args as mca

        parts["mcore_adapter"] = fields_of(mca.MegatronArguments)
        versions["mcore_adapter"] = version_of("mcore-adapter")
    else:
        trainer = fields_of(TrainingArguments)
        parts["llamafactory_trainer"] = {n: f for n, f in trainer.items() if n not in parts["transformers"]}
        versions["llamafactory_trainer"] = versions["llamafactory"]
    return {part: {"version": versions[part], "keys": dict(sorted(fields.items()))} for part, fields in parts.items()}


KEYS = {"llamafactory": keys_of_llamafactory, "swift": keys_of_swift}


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def fields_of(*owners: Any) -> dict[str, Any]:
    """Return the type, default and choices of every field of dataclasses, by name."""
    fields = {}
    for owner in owners:
        hints = typing.get_type_hints(owner)
        for field in dataclasses.fields(owner):
            if field.init:
                fields[field.name] = describe(hints[field.name], field)
    return fields


def describe(hint: Any, field: Any) -> dict[str, Any]:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    default = default.value if isinstance(default, enum.Enum) else default
    # A required argument has no default.
    key = {"type": name_of(hint), "default": default if isinstance(default, PLAIN) else None}
    choices = [choice for part in typing.get_args(hint) or (hint,) for choice in choices_of(part)] or choices_of(hint)
    return {**key, "choices": choices} if choices else key


def choices_of(hint: Any) -> list[Any]:
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [member.value for member in hint]
    return []


def name_of(hint: Any) -> str:
    """Return a short name of a type: `int`, `float | None`."""
    union = getattr(types, "UnionType", typing.Union)
    if typing.get_origin(hint) in (typing.Union, union):
        return " | ".join(dict.fromkeys(name_of(part) for part in typing.get_args(hint)))
    if hint is type(None):
        return "None"
    if choices := choices_of(hint):
        return type(choices[0]).__name__
    return getattr(typing.get_origin(hint) or hint, "__name__", "str")
