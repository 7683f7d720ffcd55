"""Who is logged in: sessions, and the tickets that lead to one, both in server memory only.

A monotonic clock counts their age.
"""

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


class Tickets:
    """Tickets lead from a log-in at a name such as localhost to the server's own name; each works once, briefly."""

    VALID_S = 60.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._table: dict[str, float] = {}
        self._lock = threading.Lock()

    def make(self) -> str:
        """A ticket for a client that has just given the right password."""
        ticket = secrets.token_urlsafe(32)
        now = self._clock()
        with self._lock:
            self._table = {key: made_s for key, made_s in self._table.items() if now - made_s <= self.VALID_S}
            self._table[_key(ticket)] = now
        return ticket

    def take(self, ticket: str) -> bool:
        """Whether the ticket was valid; this use makes it invalid."""
        with self._lock:
            made_s = self._table.pop(_key(ticket), None)
        return made_s is not None and self._clock() - made_s <= self.VALID_S


def _is_over(session: _Session, now: float) -> bool:
    return now - session.used_s > IDLE_S or now - session.created_s > LONGEST_S


def _key(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
