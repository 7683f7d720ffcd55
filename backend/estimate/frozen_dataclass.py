"""Dataclasses of the formulas: immutable for the type checker, and cheap to create.

A frozen dataclass checks each field again at every creation, which took a quarter of the time of an estimate.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar, cast, dataclass_transform

Class = TypeVar("Class")
Arguments = ParamSpec("Arguments")


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


def constructor(cls: Callable[Arguments, Class]) -> Callable[Arguments, Class]:
    """Return a function that creates an instance of a `frozen_dataclass`, for classes that every estimate creates.

    Python puts the keyword arguments of a call of a class into a dict and takes them out again. It passes those of a
    function directly, which takes a third of the time.
    """
    init = cls.__init__
    names = init.__code__.co_varnames[1 : 1 + init.__code__.co_kwonlyargcount]
    steps = ["self = new(cls)", *(f"self.{name} = {name}" for name in names)]
    steps += ["self.__post_init__()"] * hasattr(cls, "__post_init__") + ["return self"]
    scope: dict[str, Any] = {"new": object.__new__, "cls": cls}
    exec(f"def create(*, {', '.join(names)}):\n    " + "\n    ".join(steps), scope)  # noqa: S102
    scope["create"].__kwdefaults__ = init.__kwdefaults__
    return cast(Callable[Arguments, Class], scope["create"])
