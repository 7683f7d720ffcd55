"""Deadlines of whole calls, also of library calls without a time-out. A thread ends the calls that are too late.

deadline = Deadline(10.0)
with ended_at(deadline, channel.close):
    channel.exec_command(command)        # would wait forever; raises TimeoutError after 10 s
"""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import paramiko

from backend.cluster.threads import start_thread

_log = logging.getLogger(__name__)

FORCE_AFTER_S = 1.0
"""Time from the deadline until the connection is cut. Closing a channel may wait for the other side."""
RETRY_S = 0.5
"""Time until the next try to end a call, where no thread could be started."""


class Deadline:
    """The time by which a call must end, with all its waits."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.at = time.monotonic() + timeout_s

    @property
    def is_past(self) -> bool:
        """Return whether the deadline has passed."""
        return time.monotonic() >= self.at

    def left_s(self) -> float:
        """Return the seconds that are left. Raises TimeoutError when none is left."""
        left_s = self.at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"not done within {self.timeout_s:g} s")
        return left_s


@contextmanager
def ended_at(deadline: Deadline, end: Callable[[], object], *, later_s: float = 0.0) -> Iterator[None]:
    """Call `end` from another thread at the deadline, or `later_s` after it, unless the body ends first.

    Errors that `end` causes in the body become TimeoutError. paramiko raises such errors when a channel closes.
    Raises OSError before the body if no thread can be started.
    """
    timer = _Timer(deadline.at + later_s, end)
    _watchdog.add(timer)
    try:
        yield
    except (EOFError, OSError, paramiko.SSHException, ValueError) as error:
        if timer.has_expired:
            raise TimeoutError(f"not done within {deadline.timeout_s:g} s") from error
        raise
    finally:
        timer.is_over = True


class _Timer:
    def __init__(self, at: float, end: Callable[[], object]) -> None:
        self.at = at
        self.end = end
        self.is_over = False
        self.has_expired = False

    def expire(self) -> None:
        """Start a thread that ends the call. Raises OSError where no thread can be started."""
        self.has_expired = True
        # `end` may wait. It must not delay other deadlines.
        start_thread(self._end, "past a deadline")

    def _end(self) -> None:
        try:
            self.end()
        except (EOFError, OSError, paramiko.SSHException) as error:
            _log.info("the connection was lost while a call over it was ended: %r", error)


class _Watchdog:
    """Keep all deadlines in one thread while there are any. One thread per call would be expensive.

    The timer of a finished call stays until its deadline.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def add(self, timer: _Timer) -> None:
        """Add a timer. Raises OSError where no thread can be started."""
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                self._thread = start_thread(self._run, "deadlines")
            self._push(timer.at, timer)

    def _push(self, at: float, timer: _Timer) -> None:
        heapq.heappush(self._timers, (at, next(self._numbers), timer))
        if self._timers[0][2] is timer:
            self._changed.notify()

    def _run(self) -> None:
        while (timer := self._next()) is not None:
            try:
                timer.expire()
            except OSError as error:
                _log.warning("a call past its deadline cannot be ended yet: %s", error)
                with self._changed:
                    self._push(time.monotonic() + RETRY_S, timer)

    def _next(self) -> _Timer | None:
        """Wait for the next timer that expires. None: no timer is left, and the thread ends."""
        with self._changed:
            while self._timers:
                at, _, timer = self._timers[0]
                left_s = at - time.monotonic()
                if timer.is_over or left_s <= 0:
                    heapq.heappop(self._timers)
                    if not timer.is_over:
                        return timer
                else:
                    self._changed.wait(left_s)
            self._thread = None
            return None


_watchdog = _Watchdog()
