"""Limits on the number and duration of the page's connections.

Anyone who can reach the port can open sockets. A socket counts from the moment when it is accepted. So a socket whose
TLS handshake never ends also counts. uvicorn and asyncio see ordinary sockets.
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
"""Connections accepted before the event loop reads others. A flood must not replace one that has just sent data."""
_LOG_EVERY_S = 60.0


class Stage(Enum):
    """What a connection waits for."""

    REQUEST = "request"
    """The first byte, the TLS handshake or the rest of the headers."""

    BODY = "body"
    ANSWER = "answer"
    IDLE = "idle"
    """The next request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The maximum number of connections, and the maximum time of each stage."""

    most: int
    """Maximum simultaneous connections."""

    request_s: float = 10.0
    anonymous_body_s: float = 10.0
    """A client without a session can only send a password."""

    body_s: float = 60.0
    anonymous_answer_s: float = 60.0
    """Responses to the operator have no limit, because an open page listens to a stream of events."""

    idle_s: float = 60.0
    """uvicorn closes idle connections after 5 s. This limit is for a client that does not read its whole response."""

    check_every_s: float = 1.0

    def allowed_s(self, stage: Stage, *, is_operator: bool) -> float:
        """Return the maximum time of a stage."""
        if stage is Stage.REQUEST:
            return self.request_s
        if stage is Stage.IDLE:
            return self.idle_s
        if stage is Stage.BODY:
            return self.body_s if is_operator else self.anonymous_body_s
        return float("inf") if is_operator else self.anonymous_answer_s


class Connection(socket.socket):
    """An accepted socket with its client and its stage. A closed socket no longer counts."""

    connections: "Connections"
    client: str
    stage = Stage.REQUEST
    since_s: float
    transport: asyncio.Transport | None = None
    """Set after the TLS handshake."""

    scope: Mapping[str, object] | None = None
    """ASGI scope of the newest request. AuthMiddleware notes the operator in it."""

    @classmethod
    def of(cls, accepted: socket.socket, client: str, connections: "Connections", now_s: float) -> Self:
        """Return the same socket as a Connection."""
        connection = cls(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        connection.client, connection.connections, connection.since_s = client, connections, now_s
        return connection

    @property
    def is_operator(self) -> bool:
        """Whether the newest request had an open session."""
        state = self.scope.get("state") if self.scope else None
        return isinstance(state, dict) and bool(state.get("operator"))

    def enter(self, stage: Stage) -> None:
        """Set what the connection waits for now."""
        if stage is not self.stage:
            self.stage, self.since_s = stage, self.connections.now_s()

    def end(self) -> None:
        """Close the connection now, without waiting for the client."""
        self.connections.forget(self)
        if self.transport is not None:
            self.transport.abort()
            return
        try:
            self.shutdown(socket.SHUT_RDWR)  # asyncio holds the socket and then sees its end
        except OSError:
            _log.debug("a connection of %s had ended by itself", self.client)

    def close(self) -> None:
        self.connections.forget(self)
        super().close()


class Connections:
    """The open connections. All methods run on the event loop's thread.

    At the limit, a new connection replaces one without a session. It is taken from the client with the most of them:
    first one that has sent no request, then the oldest. A connection of the operator is closed only if it is idle and
    there are no others. If none may be closed, the new connection is refused.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._open: dict[int, Connection] = {}
        self._is_check_scheduled = False
        self._ended: Counter[str] = Counter()
        self._logged_s = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    def now_s(self) -> float:
        """Return the time of the event loop's monotonic clock."""
        return asyncio.get_running_loop().time()

    def admit(self, accepted: socket.socket, address: str) -> Connection | None:
        """Return the new connection. None: there was no room, and the socket was closed."""
        client = network_of(address)
        if len(self._open) >= self.limits.most and not self._make_room(client):
            accepted.close()
            return None
        connection = Connection.of(accepted, client, self, self.now_s())
        self._open[connection.fileno()] = connection
        self._schedule_check()
        return connection

    def find(self, transport: asyncio.BaseTransport) -> Connection | None:
        """Return the connection of a transport. None: it is already closed."""
        return self._open.get(transport.get_extra_info("socket").fileno())

    def forget(self, connection: Connection) -> None:
        """Stop counting a connection."""
        if self._open.get(connection.fileno()) is connection:
            del self._open[connection.fileno()]

    def end_one(self) -> bool:
        """Close a connection that is not the operator's, or an idle one. Return whether there was one."""
        victim = self._victim(None)
        if victim is not None:
            victim.end()
        return victim is not None

    def _make_room(self, client: str) -> bool:
        victim = self._victim(client)
        self._log(client if victim is None else victim.client)
        if victim is None:
            return False
        victim.end()
        return True

    def _victim(self, newcomer: str | None) -> Connection | None:
        anonymous = [connection for connection in self._open.values() if not connection.is_operator]
        if anonymous:
            held = Counter(connection.client for connection in anonymous)
            if newcomer is not None and newcomer in held:
                held[newcomer] += 1
            most = max(held.values())
            return min((connection for connection in anonymous if held[connection.client] == most), key=_worth)
        idle = [connection for connection in self._open.values() if connection.stage is Stage.IDLE]
        return min(idle, key=_worth, default=None)

    def _log(self, client: str) -> None:
        """Log the clients whose connections were closed, at most once a minute."""
        self._ended[client] += 1
        if self.now_s() - self._logged_s < _LOG_EVERY_S:
            return
        clients = ", ".join(f"{name} ({count})" for name, count in self._ended.most_common(3))
        _log.warning("the limit of %d open connections is reached; closed: %s", self.limits.most, clients)
        self._ended.clear()
        self._logged_s = self.now_s()

    def _schedule_check(self) -> None:
        if not self._is_check_scheduled:
            self._is_check_scheduled = True
            asyncio.get_running_loop().call_later(self.limits.check_every_s, self._check)

    def _check(self) -> None:
        """Close connections whose stage takes too long."""
        now_s = self.now_s()
        for connection in list(self._open.values()):
            allowed_s = self.limits.allowed_s(connection.stage, is_operator=connection.is_operator)
            if now_s - connection.since_s > allowed_s:
                connection.end()
        self._is_check_scheduled = False
        if self._open:
            self._schedule_check()


_ORDER = {Stage.REQUEST: 0, Stage.BODY: 0, Stage.IDLE: 1, Stage.ANSWER: 2}


def _worth(connection: Connection) -> tuple[int, float]:
    return _ORDER[connection.stage], connection.since_s


class LimitedListener(socket.socket):
    """A listening socket. `connections` decides which accepted sockets stay open."""

    def __init__(self, listener: socket.socket, connections: Connections) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._connections = connections
        self._in_a_row = 0
        self._is_out_of_descriptors = False

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept one connection. asyncio repeats this until no client waits (BlockingIOError)."""
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
                # Otherwise asyncio would repeat this thousands of times before it pauses for a second.
                self._is_out_of_descriptors = True
                self._connections.end_one()
            raise
        connection = self._connections.admit(accepted, address[0])
        if connection is None:
            self._in_a_row = 0
            raise ConnectionAbortedError
        return connection, address
