"""Dataclasses of the formulas: immutable for the type checker, and cheap to create.

A frozen dataclass checks each field again at every creation, which took a quarter of the time of an estimate.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

Class = TypeVar("Class")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen_dataclass(cls: type[Class]) -> type[Class]:
    """Return a dataclass with keyword arguments and slots. The type checker refuses to set its fields."""
    return dataclass(kw_only=True, slots=True)(cls)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def positional_dataclass(cls: type[Class]) -> type[Class]:
    """Return the same with positional arguments, for small values that every formula creates."""
    return dataclass(slots=True)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def immutable_dataclass(cls: type[Class]) -> type[Class]:
    """Return a dataclass with keyword arguments that refuses changes at run time, too, for results with many fields.

    Its instances get all values in one step. Only the type checker looks for missing and unknown names.
    """

    def init(self: object, **values: Any) -> None:
        object.__setattr__(self, "__dict__", values)

    made = dataclass(frozen=True, kw_only=True, init=False)(cls)
    made.__init__ = init  # type: ignore[method-assign]
    return made
