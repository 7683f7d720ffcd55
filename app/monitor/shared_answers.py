"""Answers that many tabs request at once: the first request makes the answer, and the others wait for it."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(kw_only=True, slots=True)
class _Entry(Generic[T]):
    made_at: float
    version: object
    answer: "Future[T]" = field(default_factory=Future)


class Shared(Generic[T]):
    """At most `size` answers by key, each for at most `fresh_s`; safe for many threads.

    No lock is held while an answer is made, so no request waits for the answer of another key.
    """

    def __init__(self, clock: Callable[[], float], *, fresh_s: float, size: int) -> None:
        self._clock = clock
        self._fresh_s = fresh_s
        self._size = size
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T], version: object = None) -> T:
        """Return the answer for a key. Make it again if it is too old or has another `version` (by identity).

        Every waiting request raises the exception of `make`. The exception is not stored.
        """
        with self._lock:
            now = self._clock()
            entry = self._entries.get(key)
            is_mine = entry is None or entry.version is not version or not 0 <= now - entry.made_at < self._fresh_s
            if entry is None or is_mine:
                entry = self._entries[key] = _Entry(made_at=now, version=version)
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        if is_mine:
            try:
                entry.answer.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._entries.get(key) is entry:
                        del self._entries[key]
                entry.answer.set_exception(error)
        return entry.answer.result()

    def forget(self, key: Hashable) -> None:
        """Delete the answer, so that the next call makes it again."""
        with self._lock:
            self._entries.pop(key, None)
