"""The way to an SSH server, within a deadline: TCP, another SSH connection, or a program."""

import socket
import subprocess
from typing import Any

import paramiko

from backend.cluster.deadlines import Deadline
from backend.cluster.ssh.connect_errors import is_local
from backend.cluster.ssh.limits import BoundedSocket, bounded_channel
from backend.cluster.ssh.resolver import look_up

LOST_AFTER_S = 10
"""Unanswered bytes for this long end a connection; keep-alives alone did not notice a dead link in 70 s."""


def dial_address(address: str, port: int, deadline: Deadline) -> BoundedSocket:
    """A TCP connection to the first of the host's addresses that takes it.

    Raises OSError, among them socket.gaierror and TimeoutError. What an address of the host says counts for more than
    what this machine refuses, such as IPv6 where it has none.
    """
    failure: OSError | None = None
    for family, kind, protocol, _, place in look_up(address, port, deadline):
        try:
            sock = socket.socket(family, kind, protocol)
            try:
                _connect(sock, place, deadline)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            if failure is None or is_local(failure, address, port):
                failure = error
        else:
            return BoundedSocket(sock)
    raise failure or OSError("no address")


def _connect(sock: socket.socket, place: Any, deadline: Deadline) -> None:
    sock.settimeout(deadline.left_s())
    sock.connect(place)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Linux only; elsewhere the deadline of the next call detects a dead connection.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_AFTER_S * 1000)


def dial_through(transport: paramiko.Transport, address: str, port: int, deadline: Deadline) -> BoundedSocket:
    """A connection that the host at the other end of `transport` makes. Raises paramiko.SSHException."""
    place = (address, port)
    channel = transport.open_channel("direct-tcpip", place, ("127.0.0.1", 0), timeout=deadline.left_s())
    return BoundedSocket(bounded_channel(channel))


def dial_by_program(command: str) -> BoundedSocket:
    """What a ProxyCommand reaches. It is killed when the connection closes."""
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
