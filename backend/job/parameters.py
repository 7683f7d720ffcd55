"""The parameter table: type, choices, range, unit, source of the default and engine keys of every key of the job file.

A field says what is special about it once, with `parameter(...)`; the wizard, the validation, the renderers, the import
and docs/parameters.*.md read it here. Words stand in the catalogues: `param.<path>` names it, `.help` says what it
means, `.set` how to set it, `.constraint` what binds it, `.memory`, `.bubble` and `.speed` what it does to these, and
`.guides` what guides say.
"""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

Kind = Literal["int", "float", "bool", "str", "choice", "list", "mapping"]

Reader = Literal["llamafactory", "hugging_face", "mcore_adapter", "swift", "deepspeed", "accelerate"]
"""Who reads a key: all of LLaMA-Factory, its Hugging Face trainer alone, mcore_adapter, ms-swift; deepspeed.json;
the variables that accelerate reads."""

SOURCES: Mapping[str, str] = {
    "transformers": "https://github.com/huggingface/transformers/blob/v5.6.0/src/transformers/training_args.py",
    "llamafactory": "https://github.com/hiyouga/LLaMA-Factory/tree/v0.9.5/src/llamafactory/hparams",
    "examples": "https://github.com/hiyouga/LLaMA-Factory/tree/v0.9.5/examples",
    "mcore_adapter": "https://github.com/alibaba/ROLL/blob/8eb27cc2dc34c4d1310b169d9b86d339004d811a/mcore_adapter/src/mcore_adapter/training_args.py",
    "swift": "https://pypi.org/project/ms-swift/4.6.0/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "ssh": "https://www.rfc-editor.org/rfc/rfc4253",
    "clusters": "presets/clusters.yaml",
    "guides": "",
    "ours": "",
}
"""Where a default comes from -> the address; words under `param.source.<name>`. Guides: five articles on LLaMA-Factory
with Megatron for Qwen3-VL 8B on 4 nodes of 8 GPUs, whose figures the page shows beside computed ones."""

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
    """A dataclass field of the job file with its range, unit and format, where its default is from, and engines' keys.

    `minimum` and `maximum` are included in the range, `above` is not; `pattern` is matched against the whole string
    (against every string of a list). `source` is one of SOURCES. Each Reader takes the keys that carry the value, the
    one that says it as it is first; `megatron` are keys that mcore_adapter and ms-swift share.
    """
    given = {reader: (names,) if isinstance(names, str) else tuple(names) for reader, names in keys.items()}
    if megatron:
        shared = (megatron,) if isinstance(megatron, str) else tuple(megatron)
        given |= {reader: (*given.get(reader, ()), *shared) for reader in ("mcore_adapter", "swift")}
    metadata = {"minimum": minimum, "maximum": maximum, "unit": unit, "pattern": pattern, "above": above,
                "source": source, "keys": given}  # fmt: skip
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
    """May be null."""
    required: bool
    default: Any
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    unit: str | None = None
    pattern: str | None = None
    source: str | None = None
    """One of SOURCES; None where there is no default to explain."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Reader -> its keys."""


def describe(owner: type, prefix: str = "") -> Iterator[Parameter]:
    """Every leaf parameter of a job dataclass, in the order of the file; nested dataclasses are walked."""
    hints = typing.get_type_hints(owner)
    for item in dataclasses.fields(owner):
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
    """`T | None` as (T, True); anything else as (itself, False)."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        rest = [part for part in typing.get_args(hint) if part is not type(None)]
        optional = len(rest) < len(typing.get_args(hint))
        return (rest[0] if len(rest) == 1 else typing.Union[tuple(rest)]), optional  # noqa: UP007
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
