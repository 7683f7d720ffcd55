"""uvicorn's HTTP/1.1 protocol with the stage of each connection (connection_limits.py)."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.web.connection_limits import Connection, Connections, Stage


class TimedProtocol(H11Protocol):
    """One connection after its TLS handshake."""

    def __init__(self, *, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._connections = connections
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection = self._connections.find(transport)
        if self._connection is None:  # it was closed during the handshake
            transport.abort()
        else:
            self._connection.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._connection is not None and self._connection.stage is Stage.IDLE:
            self._connection.enter(Stage.REQUEST)
        super().data_received(data)
        self._update_stage()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_stage()

    def _update_stage(self) -> None:
        if self._connection is not None:
            self._connection.scope = self.scope
            self._connection.enter(self._stage())

    def _stage(self) -> Stage:
        # This comes first because a response may end before the body does. The rest of the body keeps the body's limit.
        if self.conn.their_state is h11.SEND_BODY:
            return Stage.BODY
        if self.cycle is not None and not self.cycle.response_complete:
            return Stage.ANSWER
        has_part = self.conn.their_state is not h11.IDLE or bool(self.conn.trailing_data[0])
        return Stage.REQUEST if has_part else Stage.IDLE
