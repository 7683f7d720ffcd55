"""Shared results of plans that differ only in the cut of a stage's layers into model chunks."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")


class Memo:
    """Results of arrays of plans that differ only in VPP and in what counts as a layer.

    The contents of a stage follow from its layers. With PP 2, plans with eight values of VPP compute them once.
    """

    def __init__(self) -> None:
        self.stages: dict[Any, Any] = {}
        """The contents of stages (megatron.py)."""
        self.chunks: dict[Any, Any] = {}
        """The saved activations of chunks (megatron.py)."""
        self._known: dict[Hashable, Any] = {}
        self._objects: dict[int, object] = {}

    def once(self, key: Hashable, compute: Callable[..., Value], *arguments: Any) -> Value:
        """Return the value of a key; compute it on the first call."""
        if key not in self._known:
            self._known[key] = compute(*arguments)
        value: Value = self._known[key]
        return value

    def number(self, value: object) -> int:
        """Return a number that identifies an object in a key."""
        self._objects[id(value)] = value
        return id(value)
