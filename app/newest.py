"""A cache of one value."""

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Newest(Generic[K, V]):
    """The value of the newest key, for a key that cannot be hashed. Thread-safe."""

    def __init__(self) -> None:
        self._newest: tuple[K, V] | None = None

    def get(self, key: K, compute: Callable[[K], V]) -> V:
        """Return the value of a key. Computes it unless the key equals the newest one."""
        newest = self._newest  # another thread may replace it
        if newest is None or newest[0] != key:
            newest = self._newest = (key, compute(key))
        return newest[1]
