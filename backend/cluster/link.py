"""One verified and authenticated SSH connection: where to, through what, with which key.

Where a host leads says ssh_config.py. The host key is checked before any key of ours is offered, that of a host in
between too. No password, no agent forwarding.
"""

import logging
import random
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from backend.cluster.hostkeys import KnownHosts
from backend.cluster.identities import offered_keys
from backend.cluster.node import NodeError
from backend.cluster.passphrases import PASSPHRASES, Passphrases
from backend.cluster.ssh_config import Target, find_target
from backend.job.cluster import Host

# What it logs of a failed connection, whole tracebacks, is raised here as a NodeError.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)
_log = logging.getLogger(__name__)

KEEP_ALIVE_S = 5
IDLE_WAKE_S = 1.0
LOST_AFTER_S = 10
"""Unanswered bytes for this long end a connection; keep-alives alone did not notice a dead link in 70 s."""
BANNER_TRIES = 3
"""sshd drops connections at random when many arrive at once (MaxStartups 10:30:100 is its default)."""
MAX_JUMPS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """An open connection and the one it goes through."""

    transport: paramiko.Transport
    through: "Link | None"

    @property
    def alive(self) -> bool:
        return self.transport.is_active()

    def close(self) -> None:
        if isinstance(self.transport.sock, socket.socket):
            with suppress(OSError):  # it was lost already
                self.transport.sock.shutdown(socket.SHUT_RDWR)
        self.transport.close()
        if self.through:
            self.through.close()


def open_link(
    host: Host,
    known_hosts: KnownHosts,
    *,
    passphrases: Passphrases = PASSPHRASES,
    timeout_s: float = 10.0,
    sleep: Callable[[float], None] = time.sleep,
    ssh_folder: Path | None = None,
) -> Link:
    """Connect, check the host's key, log in, all within `timeout_s`.

    Raises NodeError, among them UnknownHostKey and ChangedHostKey.
    """
    opener = _Opener(
        known_hosts=known_hosts,
        passphrases=passphrases,
        sleep=sleep,
        ssh_folder=ssh_folder or Path.home() / ".ssh",
    )
    return opener.open(host, timeout_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opener:
    """What a connection and those that it goes through have in common."""

    known_hosts: KnownHosts
    passphrases: Passphrases
    sleep: Callable[[float], None]
    ssh_folder: Path

    def open(self, host: Host, timeout_s: float, usual_keys: tuple[Path, ...] = (), depth: int = 0) -> Link:
        """`usual_keys` are offered where nobody names any for the host."""
        target = find_target(host, self.ssh_folder)
        target = replace(target, identity_files=target.identity_files or usual_keys)
        deadline = time.monotonic() + timeout_s
        for attempt in range(1, BANNER_TRIES + 1):
            left_s = max(1.0, deadline - time.monotonic())
            through = self._open_jump(target, left_s, depth) if target.jump else None
            try:
                return self._open_one(target, through, left_s)
            except (EOFError, OSError, paramiko.SSHException) as error:
                late = attempt == BANNER_TRIES or time.monotonic() > deadline
                if late or not _dropped_at_the_door(error):
                    raise _explain(error, target) from error
            self.sleep(random.uniform(0.1, 0.5) * attempt)  # noqa: S311 - jitter, no secret
        raise AssertionError("the last try returns or raises")

    def _open_jump(self, target: Target, timeout_s: float, depth: int) -> Link:
        if depth == MAX_JUMPS:
            raise NodeError("unreachable", target.node, key="proxy_jump", detail=f"more than {MAX_JUMPS} jumps")
        *before, last = str(target.jump).split(",")
        match = re.fullmatch(r"(?:(?P<user>[^@]+)@)?(?P<address>[^@:]+|\[[^\]]+\])(?::(?P<port>\d{1,5}))?", last)
        if match is None or int(match["port"] or 22) > 65_535:
            raise NodeError("bad_proxy_jump", target.node, key="proxy_jump", jump=target.jump)
        host = Host(
            address=match["address"].strip("[]"),
            user=match["user"],
            port=int(match["port"] or 22),
            proxy_jump=",".join(before) or None,
        )
        try:
            return self.open(host, timeout_s, target.identity_files, depth + 1)
        except NodeError as error:
            error.key = "proxy_jump"
            raise

    def _open_one(self, target: Target, through: Link | None, timeout_s: float) -> Link:
        transport = None
        try:
            transport = paramiko.Transport(_dial(target, through, timeout_s))
            _negotiate(transport, target, self.known_hosts, timeout_s)
            _log_in(transport, target, offered_keys(target, self.passphrases, self.ssh_folder))
            transport.set_keepalive(KEEP_ALIVE_S)
            # paramiko wakes ten times a second to look whether it was closed; `Link.close` tells it.
            transport.sock.settimeout(IDLE_WAKE_S)
            return Link(transport=transport, through=through)
        except BaseException:
            for part in (transport, through):
                if part is not None:
                    part.close()
            raise


def _dial(
    target: Target, through: Link | None, timeout_s: float
) -> socket.socket | paramiko.Channel | paramiko.ProxyCommand:
    place = (target.address, target.port)
    if target.command:
        return paramiko.ProxyCommand(shlex.join(["sh", "-c", f"exec {target.command}"]))
    if through:
        return through.transport.open_channel("direct-tcpip", place, ("127.0.0.1", 0), timeout=timeout_s)
    sock = socket.create_connection(place, timeout=timeout_s)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Linux only; elsewhere a dead link is noticed by the deadline of the next call.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_AFTER_S * 1000)
    return sock


def _negotiate(transport: paramiko.Transport, target: Target, known_hosts: KnownHosts, timeout_s: float) -> None:
    transport.banner_timeout = transport.auth_timeout = timeout_s
    transport.channel_timeout = timeout_s
    options = transport.get_security_options()
    known = known_hosts.key_types(target.address, target.port)
    # Authenticated by themselves: paramiko compares the others' checksums byte by byte in Python.
    options.ciphers = sorted(options.ciphers, key=lambda name: "-gcm@" not in name)
    options.key_types = sorted(options.key_types, key=lambda kind: _plain_type(kind) not in known)
    transport.start_client(timeout=timeout_s)
    if not transport.initial_kex_done:
        raise TimeoutError(f"no answer within {timeout_s:.0f} s")
    key = transport.get_remote_server_key()
    known_hosts.check(target.node, target.address, target.port, key.get_name(), key.asbytes())


def _plain_type(algorithm: str) -> str:
    """The key type of a signature algorithm: RSA keys sign with several."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def _log_in(transport: paramiko.Transport, target: Target, keys: Iterable[paramiko.PKey]) -> None:
    tried = 0
    for key in keys:
        tried += 1
        try:
            if not transport.auth_publickey(target.user, key):
                return
        except paramiko.BadAuthenticationType as error:
            raise _refused(target, tried, f"the server accepts only: {', '.join(error.allowed_types)}") from error
        except paramiko.AuthenticationException as error:
            _log.info("%s: key %s was not accepted: %s", target.node, key.fingerprint, error)
            if not transport.is_active():
                break
    raise _refused(target, tried, "no key was accepted" if tried else "there is no key to offer")


def _refused(target: Target, tried: int, detail: str) -> NodeError:
    files = ", ".join(str(path) for path in target.identity_files)
    return NodeError(
        "authentication",
        target.node,
        key="identity_file",
        user=target.user,
        keys=tried,
        identity_file=files or "-",
        detail=detail,
    )


def _dropped_at_the_door(error: Exception) -> bool:
    dropped = isinstance(error, EOFError | ConnectionResetError | BrokenPipeError)
    return dropped or (type(error) is paramiko.SSHException and "banner" in str(error))


def _explain(error: Exception, target: Target) -> NodeError:
    if isinstance(error, NodeError):
        return error
    if isinstance(error, socket.gaierror):
        return NodeError("address_unknown", target.node, address=target.address)
    if isinstance(error, IncompatiblePeer):
        return NodeError("old_ssh", target.node, detail=str(error))
    detail = str(error) or type(error).__name__
    return NodeError("unreachable", target.node, address=target.address, port=target.port, detail=detail)
