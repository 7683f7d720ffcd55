"""A property that is computed once."""

from collections.abc import Callable
from typing import Generic, Self, TypeVar, overload

Instance = TypeVar("Instance")
Value = TypeVar("Value")


class stored_property(Generic[Instance, Value]):
    """A property that is computed on its first access and then stored as an attribute of the instance.

    functools.cached_property stores it in __dict__, and once this dict exists, Python reads every other attribute of
    the instance in twice the time. One such property in a class avoids the dict: Python 3.11 keeps room for one
    attribute more than __init__ sets.
    """

    def __init__(self, compute: Callable[[Instance], Value]) -> None:
        self._compute, self._name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Instance]) -> Self: ...

    @overload
    def __get__(self, instance: Instance, owner: type[Instance]) -> Value: ...

    def __get__(self, instance: Instance | None, owner: type[Instance]) -> Value | Self:
        if instance is None:
            return self
        value = self._compute(instance)
        object.__setattr__(instance, self._name, value)
        return value
