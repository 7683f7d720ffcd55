"""How the formulas' values are bundled: immutable for the type checker, which reads all of this code, and so for free.

A frozen dataclass checks each field again whenever one is made, which took a quarter of the time of an estimate.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Bundle = TypeVar("Bundle")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen_dataclass(cls: type[Bundle]) -> type[Bundle]:
    """A dataclass with keywords and slots whose fields nobody may set again."""
    return dataclass(kw_only=True, slots=True)(cls)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def positional_dataclass(cls: type[Bundle]) -> type[Bundle]:
    """The same for a few values that are made in every formula: by position."""
    return dataclass(slots=True)(cls)
