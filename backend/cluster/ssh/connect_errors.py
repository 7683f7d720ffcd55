"""Causes of failed connections. An error of this machine's kernel says nothing about the node."""

import errno
import os
import socket
from typing import TYPE_CHECKING

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from backend.cluster.deadlines import Deadline
from backend.cluster.node import NodeError
from backend.cluster.ssh.resolver import look_up

if TYPE_CHECKING:
    from backend.cluster.ssh.config import Target

_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN})
_NO_NETWORK = frozenset({errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EACCES, errno.EPERM})
"""EADDRNOTAVAIL: every local port is taken. EACCES and EPERM: a firewall on this machine."""
ROUTE_S = 2.0
"""Time for the name service's second answer about a host that was just looked up."""


def is_local_resource(error: BaseException) -> bool:
    """Return whether this process or machine ran out of descriptors, memory, threads or processes."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, OSError) or isinstance(error, socket.gaierror):
        return False
    return error.errno in _NO_RESOURCES


def is_local(error: Exception, address: str, port: int) -> bool:
    """Return whether a connection to the address failed on this machine. Then it says nothing about the other end."""
    return is_local_resource(error) or _is_local_network(error, address, port)


def explain(error: Exception, target: "Target") -> NodeError:
    """Return the error of a failed connection for the user."""
    if isinstance(error, NodeError):
        return error
    if isinstance(error, socket.gaierror):
        # The resolver needs descriptors too; without them it reports an unknown name.
        lack = _lack_of_descriptors()
        if lack is None:
            return NodeError("address_unknown", target.node, address=target.address)
        error = lack
    detail = str(error) or type(error).__name__
    if is_local_resource(error):
        return NodeError("local_resources", target.node, detail=detail)
    if isinstance(error, IncompatiblePeer):
        return NodeError("old_ssh", target.node, detail=detail)
    code = "local_network" if _is_local_network(error, target.address, target.port) else "unreachable"
    return unreachable(target, detail, code)


def unreachable(target: "Target", detail: str, code: str = "unreachable") -> NodeError:
    """Return the error of a host without a connection. `detail` may be the server's own text, so it is cut."""
    return NodeError(code, target.node, address=target.address, port=target.port, detail=detail[:300])


def _is_local_network(error: Exception, address: str, port: int) -> bool:
    if not isinstance(error, OSError) or isinstance(error, paramiko.SSHException):
        return False
    if error.errno == errno.ENETUNREACH:  # this machine has no route, or a router sent the error
        return not _has_route(address, port)
    return error.errno in _NO_NETWORK


def _has_route(address: str, port: int) -> bool:
    """Return whether this machine has a route to the address. It sends no packet."""
    try:
        addresses = look_up(address, port, Deadline(ROUTE_S), socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, sockaddr in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(sockaddr)
        except OSError:  # no route to this address; the name may have others
            continue
        return True
    return False


def _lack_of_descriptors() -> OSError | None:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error
    return None
