"""Connections to an SSH server within a deadline: over TCP, over another SSH connection, or over a program."""

import socket
import subprocess
from typing import Any

import paramiko

from backend.cluster.deadlines import Deadline
from backend.cluster.ssh.connect_errors import is_local
from backend.cluster.ssh.limits import BoundedSocket, bounded_channel
from backend.cluster.ssh.resolver import look_up

LOST_AFTER_S = 10
"""A connection ends when its bytes are unanswered for this time. Keep-alives alone miss a dead connection for 70 s."""


def dial_address(address: str, port: int, deadline: Deadline) -> BoundedSocket:
    """Connect over TCP to the first of the host's addresses that accepts the connection.

    Raises OSError, among them socket.gaierror and TimeoutError. An error of the host counts for more than an error of
    this machine, such as IPv6 where it has none.
    """
    failure: OSError | None = None
    for family, kind, protocol, _, sockaddr in look_up(address, port, deadline):
        try:
            sock = socket.socket(family, kind, protocol)
            try:
                _connect(sock, sockaddr, deadline)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            if failure is None or is_local(failure, address, port):
                failure = error
        else:
            return BoundedSocket(sock)
    raise failure or OSError("no address")


def _connect(sock: socket.socket, sockaddr: Any, deadline: Deadline) -> None:
    sock.settimeout(deadline.left_s())
    sock.connect(sockaddr)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Only Linux has it. Elsewhere the deadline of the next call detects a dead connection.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_AFTER_S * 1000)


def dial_through(transport: paramiko.Transport, address: str, port: int, deadline: Deadline) -> BoundedSocket:
    """Connect from the host at the other end of `transport`. Raises paramiko.SSHException."""
    return BoundedSocket(_forward(transport, address, port, deadline))


def dial_loopback(transport: paramiko.Transport, port: int, deadline: Deadline) -> paramiko.Channel:
    """Connect to a port of the host at the other end of `transport`, on its loopback address.

    Raises paramiko.SSHException, among them ChannelException when the host refuses.
    """
    return _forward(transport, "127.0.0.1", port, deadline)


def _forward(transport: paramiko.Transport, address: str, port: int, deadline: Deadline) -> paramiko.Channel:
    server = (address, port)
    return bounded_channel(transport.open_channel("direct-tcpip", server, ("127.0.0.1", 0), timeout=deadline.left_s()))


def dial_by_program(command: str) -> BoundedSocket:
    """Connect over a ProxyCommand. The end of the connection kills the program."""
    ours, theirs = socket.socketpair()
    with theirs:
        # paramiko's ProxyCommand spins when the program ends, and blocks it after 64 KiB on stderr.
        program = subprocess.Popen(
            ["sh", "-c", f"exec {command}"],  # noqa: S607 - the operator allowed it (config.py)
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
        )
    return BoundedSocket(ours, program)
