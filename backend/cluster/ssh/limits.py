"""Limits on paramiko's memory: the bytes before the log-in, the size of a packet, and the unread output.

paramiko itself accepts everything that a server sends, such as an endless first line, a packet of 4 GiB, or more data
than a channel's window allows.
"""

import socket
import subprocess
from contextlib import suppress
from typing import Any

import paramiko
from paramiko.buffered_pipe import BufferedPipe

BEFORE_LOGIN_BYTES = 256 << 10
"""Version lines, key exchange and log-in take about 10 KiB."""
PACKET_BYTES = 1 << 20
"""RFC 4253 requires 35,000. OpenSSH sends and accepts at most 256 KiB."""
EXTRA_WINDOW_BYTES = 64 << 10
"""Bytes that a server may send beyond a channel's window. Servers do not count all bytes equally."""


class BoundedSocket:
    """The socket, channel or program that carries a connection. Too many bytes end the connection."""

    def __init__(self, inner: socket.socket | paramiko.Channel, program: "subprocess.Popen[bytes] | None" = None):
        self._inner = inner
        self._program = program
        self._left: int | None = BEFORE_LOGIN_BYTES
        self.refusal = ""
        """Why this class ended the connection. Empty: it did not end the connection."""

    def trust(self) -> None:
        """Lift the limit on the number of bytes, after a successful log-in."""
        self._left = None

    def recv(self, size: int) -> bytes:
        if size > PACKET_BYTES:
            raise self._refuse(f"the server announced a packet of {size} bytes")
        data: bytes = self._inner.recv(size)
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise self._refuse(f"the server sent more than {BEFORE_LOGIN_BYTES >> 10} KiB before the log-in")
        return data

    def send(self, data: bytes) -> int:
        return self._inner.send(data)

    def settimeout(self, timeout_s: float | None) -> None:
        self._inner.settimeout(timeout_s)

    def abort(self) -> None:
        """End every wait for this connection in any thread. This call never waits."""
        if isinstance(self._inner, socket.socket):
            with suppress(OSError):  # the connection was lost before
                self._inner.shutdown(socket.SHUT_RDWR)
        if self._program:
            self._program.kill()

    def close(self) -> None:
        with suppress(EOFError, OSError, paramiko.SSHException):  # the connection of the channel was lost before
            self._inner.close()
        if self._program:
            self._program.kill()
            with suppress(subprocess.TimeoutExpired):
                self._program.wait(1.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _refuse(self, why: str) -> paramiko.SSHException:
        self.refusal = why
        return paramiko.SSHException(why)


def bounded_channel(channel: paramiko.Channel) -> paramiko.Channel:
    """Limit a channel and return it. The connection ends if the server sends more than the window allows."""
    for pipe in (channel.in_buffer, channel.in_stderr_buffer):
        _bound(pipe, channel.in_window_size + EXTRA_WINDOW_BYTES)
    return channel


def _bound(pipe: "BufferedPipe[bytes]", most: int) -> None:
    """Patch the pipe in place, because another thread already feeds it."""
    feed = pipe.feed

    def feed_within_the_window(data: bytes) -> None:
        if len(pipe) + len(data) > most:
            raise paramiko.SSHException("the server sent more than the channel's window allows")
        feed(data)

    pipe.feed = feed_within_the_window  # type: ignore[method-assign]
