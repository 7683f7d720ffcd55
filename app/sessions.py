"""Who is logged in: sessions and the throttle on wrong passwords, both in server memory only."""

import hashlib
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

IDLE_S = 12 * 3600.0
"""A session unused for this long is over; each use renews it."""

LONGEST_S = 7 * 24 * 3600.0
"""A session is over after this long however much it is used: an open monitor page never stops asking."""

RENEW_S = 600.0
"""The browser's cookie is sent again when the last one is older than this."""


@dataclass(slots=True)
class _Session:
    created_s: float
    used_s: float
    sent_s: float


class Sessions:
    """The table of log-ins, keyed by the hash of a random 256-bit token; a restart ends them all."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._table: dict[str, _Session] = {}
        self._lock = threading.Lock()

    def open(self) -> str:
        """A new session's token."""
        token = secrets.token_urlsafe(32)
        now = self._clock()
        with self._lock:
            self._table = {key: one for key, one in self._table.items() if not _is_over(one, now)}
            self._table[_key(token)] = _Session(now, now, now)
        return token

    def use(self, token: str) -> bool:
        """Whether the token's session is alive; being asked counts as use."""
        now = self._clock()
        with self._lock:
            session = self._table.get(_key(token))
            if session is None:
                return False
            if _is_over(session, now):
                del self._table[_key(token)]
                return False
            session.used_s = now
            return True

    def cookie_age_s(self, token: str) -> int | None:
        """How long a renewed cookie may live, or None while the browser's own is young enough."""
        now = self._clock()
        with self._lock:
            session = self._table.get(_key(token))
            if session is None or now - session.sent_s < RENEW_S:
                return None
            session.sent_s = now
            return int(min(IDLE_S, session.created_s + LONGEST_S - now))

    def close(self, token: str) -> None:
        """End the token's session, if there is one."""
        with self._lock:
            self._table.pop(_key(token), None)


class Throttle:
    """One server's brake on guessing: after a few wrong passwords each further one doubles the wait.

    The wait is capped and the count forgotten after a quiet while, because whoever can reach the port
    could otherwise lock the operator out. The password's length is the defence; this only slows.
    """

    FREE = 3
    LONGEST_WAIT_S = 30.0
    FORGET_S = 900.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self._last_s = float("-inf")
        self._told = False
        self._lock = threading.Lock()

    def admit(self) -> float:
        """0 when an attempt may be made now, else the seconds to wait.

        An admitted attempt counts as wrong until `succeeded` is called, so that many at once gain nothing.
        """
        now = self._clock()
        with self._lock:
            if now - self._last_s > self.FORGET_S:
                self._failures = 0
            wait_s = self._last_s + self._delay_s() - now
            if wait_s > 0:
                return wait_s
            self._failures += 1
            self._last_s = now
            self._told = False
            return 0.0

    def is_news(self) -> bool:
        """Whether this refusal is the first since an attempt was admitted: the rest of a flood need not be recorded."""
        with self._lock:
            told, self._told = self._told, True
            return not told

    def succeeded(self) -> None:
        """The last admitted attempt was right."""
        with self._lock:
            self._failures = 0
            self._last_s = float("-inf")

    def _delay_s(self) -> float:
        over = self._failures - self.FREE
        return 0.0 if over < 0 else min(self.LONGEST_WAIT_S, 2.0 ** min(over, 16))


def _is_over(session: _Session, now: float) -> bool:
    return now - session.used_s > IDLE_S or now - session.created_s > LONGEST_S


def _key(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
