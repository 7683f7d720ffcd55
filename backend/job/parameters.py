"""The parameter table: type, choices, range and unit of every key of the job file, read off the dataclasses.

A field says what is special about it once, with `parameter(...)`; the wizard, the validation, the renderer and the
documentation read it here. Words stand in the catalogues under `param.<path>` and `param.<path>.help`.
"""

import dataclasses
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["int", "float", "bool", "str", "choice", "list", "mapping"]


def parameter(
    default: Any = dataclasses.MISSING,
    *,
    default_factory: Any = dataclasses.MISSING,
    minimum: float | None = None,
    maximum: float | None = None,
    unit: str | None = None,
    pattern: str | None = None,
    above: float | None = None,
) -> Any:
    """A dataclass field of the job file with its range, unit and format.

    `minimum` and `maximum` are included in the range, `above` is not; `pattern` is matched against the whole string
    (against every string of a list).
    """
    metadata = {"minimum": minimum, "maximum": maximum, "unit": unit, "pattern": pattern, "above": above}
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
            **{key: item.metadata.get(key) for key in ("minimum", "maximum", "above", "unit", "pattern")},
        )


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
