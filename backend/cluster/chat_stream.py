"""A streamed answer of a model server on a node (backend/node/serving), read from a connection to its port."""

import http.client
import io
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, NotRequired, TypedDict

from backend.cluster.node import ByteStream, Node, NodeError
from backend.cluster.node_json import BadJson, parse_node_json
from backend.cluster.typed_json import Longest, read_or_none

_log = logging.getLogger(__name__)

PATH = "/v1/chat/completions"
DIAL_S = 15.0
SILENT_S = 600.0
"""Longest wait for the next bytes. The first piece of an answer waits for the answers to earlier requests."""
LINE_BYTES = 256 << 10
ANSWER_BYTES = 8 << 20
Piece = Annotated[str, Longest(64 << 10)]


class Delta(TypedDict):
    """A part of an answer."""

    content: NotRequired[Piece]


class Choice(TypedDict):
    """One of the answers; a server is asked for one."""

    delta: Delta
    finish_reason: NotRequired[Piece]


class StreamEvent(TypedDict):
    """One event of the stream."""

    choices: NotRequired[list[Choice]]
    error: NotRequired[Piece]


class ChatStream:
    """One request and its answer. `close` may be called by another thread, and ends the generation on the node."""

    def __init__(self, node: Node, port: int, key: str, request: Mapping[str, Any]) -> None:
        self._node = node
        self._stream = node.dial(port, timeout_s=DIAL_S)
        self._key = key
        self._request = request
        self._is_closed = False

    def pieces(self) -> Iterator[str]:
        """Yield the text as it comes. Raises NodeError: lost, and chat_failed with the reason of the server."""
        try:
            yield from self._pieces()
        except (OSError, EOFError, http.client.HTTPException) as error:
            if not self._is_closed:
                detail = str(error) or type(error).__name__
                raise NodeError("lost", self._node.name, detail=detail) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        self._is_closed = True
        with suppress(OSError, EOFError):
            self._stream.close()

    def _pieces(self) -> Iterator[str]:
        response, size = self._send(), 0
        while line := response.readline(LINE_BYTES):
            size += len(line)
            if size > ANSWER_BYTES:
                raise NodeError("too_much_output", self._node.name, command=PATH, limit=ANSWER_BYTES)
            event = self._event(line)
            if event is None:
                continue
            if "error" in event:
                raise NodeError("chat_failed", self._node.name, detail=event["error"])
            for choice in event.get("choices", ()):
                if "finish_reason" in choice:
                    return
                if text := choice["delta"].get("content"):
                    yield text
        raise EOFError("the connection ended before the answer")

    def _send(self) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1")
        connection.sock = _Socket(self._stream)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        connection.request("POST", PATH, json.dumps(self._request), headers)
        self._stream.settimeout(SILENT_S)
        response = connection.getresponse()
        if response.status != 200:
            event = read_or_none(StreamEvent, _json(response.read(LINE_BYTES))) or {}
            detail = event.get("error", f"HTTP {response.status}")
            raise NodeError("chat_failed", self._node.name, detail=detail)
        return response

    def _event(self, line: bytes) -> StreamEvent | None:
        """Read a line of the stream; None for the lines between events. Raises NodeError(bad_answer)."""
        if not line.startswith(b"data:"):
            return None
        event = read_or_none(StreamEvent, _json(line.removeprefix(b"data:").strip()))
        if event is None:
            raise NodeError("bad_answer", self._node.name, command=PATH, exit=0, detail=repr(line[:60]))
        return event


class _Socket:
    """What http.client needs of a socket."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def sendall(self, data: bytes) -> None:
        self._stream.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Raw(self._stream))

    def close(self) -> None:
        """Leave the connection open: the response is still read from it."""


class _Raw(io.RawIOBase):
    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _json(data: bytes) -> object:
    try:
        return parse_node_json(data)
    except BadJson:
        return None
