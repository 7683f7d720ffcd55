"""Limits on the page's connections: their number, their time, and which one is closed when there are too many.

Anyone who can reach the port can open sockets. A socket counts from the moment it is accepted, so a socket that never
ends its TLS handshake counts too. uvicorn and asyncio see ordinary sockets.
"""

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from app.web.login_throttle import network_of

_log = logging.getLogger(__name__)
_AT_ONCE = 16
"""Connections accepted before what others have sent is read: a flood must not push out one that has just spoken."""
_LOG_EVERY_S = 60.0


class Stage(Enum):
    """What a connection is waiting for."""

    REQUEST = "request"
    """The first byte, the TLS handshake or the rest of the headers."""

    BODY = "body"
    ANSWER = "answer"
    IDLE = "idle"
    """The next request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How many connections there may be, and how long one may stay in a stage."""

    most: int
    """Connections at a time."""

    request_s: float = 10.0
    stranger_body_s: float = 10.0
    """The only body that somebody without a session can send is a password."""

    body_s: float = 60.0
    stranger_answer_s: float = 60.0
    """The operator's answers have no limit: a page that is open listens to a stream of events."""

    idle_s: float = 60.0
    """uvicorn ends idle connections after 5 s; this is for one that does not take the rest of its answer."""

    look_every_s: float = 1.0

    def allowed_s(self, stage: Stage, *, is_operators: bool) -> float:
        """How long a connection may stay in a stage."""
        if stage is Stage.REQUEST:
            return self.request_s
        if stage is Stage.IDLE:
            return self.idle_s
        if stage is Stage.BODY:
            return self.body_s if is_operators else self.stranger_body_s
        return float("inf") if is_operators else self.stranger_answer_s


class Connection(socket.socket):
    """An accepted socket that knows its client and its stage. A closed one is no longer counted."""

    connections: "Connections"
    client: str
    stage = Stage.REQUEST
    since_s: float
    transport: asyncio.Transport | None = None
    """Set once the handshake is over."""

    scope: Mapping[str, object] | None = None
    """Its newest request's, in which the gate notes whose it is."""

    @classmethod
    def of(cls, accepted: socket.socket, client: str, connections: "Connections", now_s: float) -> Self:
        """The same socket, as a Connection."""
        one = cls(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        one.client, one.connections, one.since_s = client, connections, now_s
        return one

    @property
    def is_operators(self) -> bool:
        """Whether its newest request had an open session."""
        state = self.scope.get("state") if self.scope else None
        return isinstance(state, dict) and bool(state.get("operator"))

    def enter(self, stage: Stage) -> None:
        """It now waits for this."""
        if stage is not self.stage:
            self.stage, self.since_s = stage, self.connections.now_s()

    def end(self) -> None:
        """Close it now, whatever the other side does."""
        self.connections.forget(self)
        if self.transport is not None:
            self.transport.abort()
            return
        try:
            self.shutdown(socket.SHUT_RDWR)  # asyncio, which holds it, then sees its end
        except OSError:
            _log.debug("a connection of %s had ended by itself", self.client)

    def close(self) -> None:
        self.connections.forget(self)
        super().close()


class Connections:
    """The open connections. All methods run on the event loop's thread.

    At the limit a new connection replaces one without a session. That one belongs to the client with most of them; one
    that has sent no request goes first, and then the oldest. The operator's connections are closed only when they are
    idle and no others are left. If none may be closed, the new connection is refused.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._open: dict[int, Connection] = {}
        self._is_looking = False
        self._ended: Counter[str] = Counter()
        self._logged_s = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    def now_s(self) -> float:
        """The event loop's monotonic clock."""
        return asyncio.get_running_loop().time()

    def admit(self, accepted: socket.socket, address: str) -> Connection | None:
        """The connection, when there is room for it; None if it was refused and closed."""
        client = network_of(address)
        if len(self._open) >= self.limits.most and not self._make_room(client):
            accepted.close()
            return None
        one = Connection.of(accepted, client, self, self.now_s())
        self._open[one.fileno()] = one
        self._look_later()
        return one

    def find(self, transport: asyncio.BaseTransport) -> Connection | None:
        """The connection under a transport; None if it was closed already."""
        return self._open.get(transport.get_extra_info("socket").fileno())

    def forget(self, one: Connection) -> None:
        """It no longer counts."""
        if self._open.get(one.fileno()) is one:
            del self._open[one.fileno()]

    def end_one(self) -> bool:
        """Close a connection that is not the operator's, or an idle one; return whether there was one."""
        victim = self._victim(None)
        if victim is not None:
            victim.end()
        return victim is not None

    def _make_room(self, client: str) -> bool:
        victim = self._victim(client)
        self._note(client if victim is None else victim.client)
        if victim is None:
            return False
        victim.end()
        return True

    def _victim(self, newcomer: str | None) -> Connection | None:
        strangers = [one for one in self._open.values() if not one.is_operators]
        if strangers:
            held = Counter(one.client for one in strangers)
            if newcomer is not None and newcomer in held:
                held[newcomer] += 1
            heaviest = max(held.values())
            return min((one for one in strangers if held[one.client] == heaviest), key=_worth)
        idle = [one for one in self._open.values() if one.stage is Stage.IDLE]
        return min(idle, key=_worth, default=None)

    def _note(self, client: str) -> None:
        """Log whose connections were closed, at most once a minute."""
        self._ended[client] += 1
        if self.now_s() - self._logged_s < _LOG_EVERY_S:
            return
        clients = ", ".join(f"{name} ({count})" for name, count in self._ended.most_common(3))
        _log.warning("%d connections are open, the most there may be; closed: %s", self.limits.most, clients)
        self._ended.clear()
        self._logged_s = self.now_s()

    def _look_later(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_later(self.limits.look_every_s, self._look)

    def _look(self) -> None:
        """Close connections that take too long."""
        now_s = self.now_s()
        for one in list(self._open.values()):
            if now_s - one.since_s > self.limits.allowed_s(one.stage, is_operators=one.is_operators):
                one.end()
        self._is_looking = False
        if self._open:
            self._look_later()


_ORDER = {Stage.REQUEST: 0, Stage.BODY: 0, Stage.IDLE: 1, Stage.ANSWER: 2}


def _worth(one: Connection) -> tuple[int, float]:
    return _ORDER[one.stage], one.since_s


class LimitedListener(socket.socket):
    """A listening socket that accepts what `connections` has room for."""

    def __init__(self, listener: socket.socket, connections: Connections) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._connections = connections
        self._in_a_row = 0
        self._is_out_of_descriptors = False

    def accept(self) -> tuple[socket.socket, Any]:
        """asyncio calls it repeatedly until nothing is waiting (BlockingIOError)."""
        self._in_a_row += 1
        if self._is_out_of_descriptors or self._in_a_row > _AT_ONCE:
            self._is_out_of_descriptors, self._in_a_row = False, 0
            raise BlockingIOError
        try:
            accepted, address = super().accept()
        except BlockingIOError:
            self._in_a_row = 0
            raise
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # Otherwise asyncio would try again at once, thousands of times, before it pauses for a second.
                self._is_out_of_descriptors = True
                self._connections.end_one()
            raise
        connection = self._connections.admit(accepted, address[0])
        if connection is None:
            self._in_a_row = 0
            raise ConnectionAbortedError
        return connection, address
