"""Sessions of logged-in browsers, and tickets that open one. Both are only in the server's memory.

Their age uses a monotonic clock.
"""

import hashlib
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

IDLE_S = 12 * 3600.0
"""A session ends after this time without use."""

MAX_AGE_S = 7 * 24 * 3600.0
"""A session ends at this age even if it is used, because an open monitor page polls all the time."""

RENEW_S = 600.0
"""The cookie is sent again if the browser's cookie is older than this."""


@dataclass(slots=True)
class _Session:
    created_s: float
    used_s: float
    sent_s: float


class Sessions:
    """The open sessions, by the hash of a random 256-bit token. A restart ends all of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._table: dict[str, _Session] = {}
        self._lock = threading.Lock()

    def open(self) -> str:
        """Open a session and return its token."""
        token = secrets.token_urlsafe(32)
        now = self._clock()
        with self._lock:
            self._table = {key: session for key, session in self._table.items() if not _is_over(session, now)}
            self._table[_key(token)] = _Session(now, now, now)
        return token

    def use(self, token: str) -> bool:
        """Return whether the token's session is open. This counts as use."""
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
        """Return the age limit of a renewed cookie, or None if the browser's cookie need not be renewed."""
        now = self._clock()
        with self._lock:
            session = self._table.get(_key(token))
            if session is None or now - session.sent_s < RENEW_S:
                return None
            session.sent_s = now
            return int(min(IDLE_S, session.created_s + MAX_AGE_S - now))

    def close(self, token: str) -> None:
        """Close the token's session, if it is open."""
        with self._lock:
            self._table.pop(_key(token), None)


class Tickets:
    """Tickets open a session at the server's own name after a log-in at a shared name. Each works once, for VALID_S."""

    VALID_S = 60.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._table: dict[str, float] = {}
        self._lock = threading.Lock()

    def make(self) -> str:
        """Return a ticket for a client that has just sent the right password."""
        ticket = secrets.token_urlsafe(32)
        now = self._clock()
        with self._lock:
            self._table = {key: made_s for key, made_s in self._table.items() if now - made_s <= self.VALID_S}
            self._table[_key(ticket)] = now
        return ticket

    def take(self, ticket: str) -> bool:
        """Return whether the ticket is valid, and make it invalid."""
        with self._lock:
            made_s = self._table.pop(_key(ticket), None)
        return made_s is not None and self._clock() - made_s <= self.VALID_S


def _is_over(session: _Session, now: float) -> bool:
    return now - session.used_s > IDLE_S or now - session.created_s > MAX_AGE_S


def _key(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
