"""The parameter table: type, choices, range, unit, source of the default and engine keys of every key of the job file.

A field states its special properties once, with `parameter(...)`. The wizard, the validation, the renderers, the import
and docs/parameters.*.md read them here. The catalogues have the texts: `param.<path>` is the name, `.help` the meaning,
`.set` how to set it, `.constraint` its limits, `.memory`, `.bubble` and `.speed` its effects, `.guides` the advice of
guides.
"""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

Kind = Literal["int", "float", "bool", "str", "choice", "list", "mapping"]

Reader = Literal[
    "llamafactory",
    "hugging_face",
    "mcore_adapter",
    "swift",
    "swift_megatron",
    "swift_trainer",
    "deepspeed",
    "accelerate",
]
"""Reader of a key: all of LLaMA-Factory, only its Hugging Face trainer, mcore_adapter, all of ms-swift, only its
Megatron, only its Hugging Face trainers, deepspeed.json, or the variables that accelerate reads."""

SOURCES: Mapping[str, str] = {
    "transformers": "https://github.com/huggingface/transformers/blob/v5.6.0/src/transformers/training_args.py",
    "llamafactory": "https://github.com/hiyouga/LLaMA-Factory/tree/v0.9.5/src/llamafactory/hparams",
    "examples": "https://github.com/hiyouga/LLaMA-Factory/tree/v0.9.5/examples",
    "mcore_adapter": "https://github.com/alibaba/ROLL/blob/8eb27cc2dc34c4d1310b169d9b86d339004d811a/mcore_adapter/src/mcore_adapter/training_args.py",
    "swift": "https://pypi.org/project/ms-swift/4.6.0/",
    "swift_examples": "https://github.com/modelscope/ms-swift/tree/main/examples/train/grpo",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "ssh": "https://www.rfc-editor.org/rfc/rfc4253",
    "clusters": "presets/clusters.yaml",
    "guides": "",
    "ours": "",
}
"""Source of a default -> its address; the text is under `param.source.<name>`. Guides are five articles on
LLaMA-Factory with Megatron for Qwen3-VL 8B on 4 nodes of 8 GPUs."""

Keys = str | tuple[str, ...]


def parameter(
    default: Any = dataclasses.MISSING,
    *,
    default_factory: Any = dataclasses.MISSING,
    minimum: float | None = None,
    maximum: float | None = None,
    unit: str | None = None,
    pattern: str | None = None,
    above: float | None = None,
    source: str | None = None,
    megatron: Keys = (),
    **keys: Keys,
) -> Any:
    """Return a dataclass field of the job file with its range, unit, format, source of the default, and engine keys.

    `minimum` and `maximum` are included in the range, `above` is not. `pattern` must match the whole string (every
    string of a list). `source` is one of SOURCES. Each Reader takes the keys that carry the value; the first one
    carries it unchanged. `megatron` are keys that mcore_adapter and ms-swift's Megatron share.
    """
    keys_by_reader = {reader: (names,) if isinstance(names, str) else tuple(names) for reader, names in keys.items()}
    if megatron:
        shared = (megatron,) if isinstance(megatron, str) else tuple(megatron)
        keys_by_reader |= {
            reader: (*keys_by_reader.get(reader, ()), *shared) for reader in ("mcore_adapter", "swift_megatron")
        }
    metadata = {"minimum": minimum, "maximum": maximum, "unit": unit, "pattern": pattern, "above": above,
                "source": source, "keys": keys_by_reader}  # fmt: skip
    arguments: dict[str, Any] = {"metadata": metadata}
    if default is not dataclasses.MISSING:
        arguments["default"] = default
    if default_factory is not dataclasses.MISSING:
        arguments["default_factory"] = default_factory
    return dataclasses.field(**arguments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One key of the job file."""

    path: str
    kind: Kind
    optional: bool
    """Whether the value may be null."""
    required: bool
    default: Any
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    unit: str | None = None
    pattern: str | None = None
    source: str | None = None
    """One of SOURCES; None if there is no default to explain."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Reader -> its keys."""


def describe(owner: type, prefix: str = "") -> Iterator[Parameter]:
    """Yield every leaf parameter of a job dataclass, in the order of the file, through nested dataclasses."""
    hints = typing.get_type_hints(owner)
    for item in dataclasses.fields(owner):
        if item.metadata.get("hidden"):
            continue
        path = f"{prefix}{item.name}"
        hint, optional = split_optional(hints[item.name])
        if dataclasses.is_dataclass(hint):
            yield from describe(typing.cast(type, hint), f"{path}.")
            continue
        kind, choices = _kind_of(hint)
        has_default = item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING
        default = item.default if item.default is not dataclasses.MISSING else None
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        yield Parameter(
            path=path,
            kind=kind,
            optional=optional,
            required=not has_default,
            default=default,
            choices=choices,
            **{key: item.metadata.get(key) for key in ("minimum", "maximum", "above", "unit", "pattern", "source")},
            keys=item.metadata.get("keys", {}),
        )


@cache
def split_optional(hint: Any) -> tuple[Any, bool]:
    """Return (T, True) for `T | None`; (hint, False) for anything else."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        optional = len(members) < len(typing.get_args(hint))
        return (members[0] if len(members) == 1 else typing.Union[tuple(members)]), optional  # noqa: UP007
    return hint, False


def _kind_of(hint: Any) -> tuple[Kind, tuple[str, ...]]:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return "choice", typing.get_args(hint)
    if origin is tuple:
        choices = typing.get_args(hint)[0]
        return "list", typing.get_args(choices) if typing.get_origin(choices) is Literal else ()
    names: dict[Any, Kind] = {int: "int", float: "float", bool: "bool", str: "str"}
    if str in typing.get_args(hint) and origin in (types.UnionType, typing.Union):
        return "str", ()
    return names.get(hint, "mapping"), ()
