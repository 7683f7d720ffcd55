"""What plans have in common that differ in nothing but how a stage's layers are cut into model chunks."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")


class Memo:
    """Values of arrays of plans, alike in all but VPP and what counts as a layer, by what tells them apart.

    What a stage holds follows from its layers: with PP 2 the plans of eight VPP ask for it once.
    """

    def __init__(self) -> None:
        self.held: dict[Any, Any] = {}
        """What stages hold: megatron.py."""
        self.kept: dict[Any, Any] = {}
        """What chunks keep: likewise."""
        self._known: dict[Hashable, Any] = {}
        self._objects: dict[int, object] = {}

    def once(self, key: Hashable, compute: Callable[..., Value], *arguments: Any) -> Value:
        """The value of a key, computed for who asks first."""
        if key not in self._known:
            self._known[key] = compute(*arguments)
        found: Value = self._known[key]
        return found

    def number(self, value: object) -> int:
        """Tells an object, as part of a key, from all others."""
        self._objects[id(value)] = value
        return id(value)
