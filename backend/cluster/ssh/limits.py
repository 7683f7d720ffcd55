"""Limits on paramiko's memory: bytes before the log-in, the size of a packet, and unread output.

paramiko itself accepts everything that a server sends: an endless first line, a packet of 4 GiB, more data than a
channel's window allows.
"""

import socket
import subprocess
from contextlib import suppress
from typing import Any

import paramiko
from paramiko.buffered_pipe import BufferedPipe

BEFORE_LOGIN_BYTES = 256 << 10
"""Version lines, key exchange and log-in take some 10 KiB."""
PACKET_BYTES = 1 << 20
"""RFC 4253 asks for 35,000; OpenSSH sends and takes at most 256 KiB."""
SPARE_BYTES = 64 << 10
"""Beyond a channel's window, for a server that counts generously."""


class BoundedSocket:
    """The socket, channel or program that carries a connection; too many bytes end the connection."""

    def __init__(self, inner: socket.socket | paramiko.Channel, program: "subprocess.Popen[bytes] | None" = None):
        self._inner = inner
        self._program = program
        self._left: int | None = BEFORE_LOGIN_BYTES
        self.refusal = ""
        """Why the connection was ended; empty where it was not."""

    def trust(self) -> None:
        """The log-in succeeded: from now on the number of packets is not limited."""
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
        """End whatever waits for this connection, in any thread, without waiting."""
        if isinstance(self._inner, socket.socket):
            with suppress(OSError):  # it was lost already
                self._inner.shutdown(socket.SHUT_RDWR)
        if self._program:
            self._program.kill()

    def close(self) -> None:
        with suppress(EOFError, OSError, paramiko.SSHException):  # the connection that a channel goes through is gone
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
    """The channel; the connection ends if the server sends more than the window allows."""
    for pipe in (channel.in_buffer, channel.in_stderr_buffer):
        _bound(pipe, channel.in_window_size + SPARE_BYTES)
    return channel


def _bound(pipe: "BufferedPipe[bytes]", most: int) -> None:
    """Patch the pipe in place, because another thread already feeds it."""
    feed = pipe.feed

    def feed_within_the_window(data: bytes) -> None:
        if len(pipe) + len(data) > most:
            raise paramiko.SSHException("the server sent more than the channel's window allows")
        feed(data)

    pipe.feed = feed_within_the_window  # type: ignore[method-assign]
