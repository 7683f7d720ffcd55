"""One verified and authenticated SSH connection to a host, directly or through jump hosts.

config.py returns the target of a host. The host key, also that of a jump host, is checked before any of our keys is
offered. Log-ins use neither passwords nor agent forwarding.
"""

import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko

from backend.cluster.deadlines import FORCE_AFTER_S, Deadline, ended_at
from backend.cluster.node import NodeError
from backend.cluster.ssh.agent import Agent
from backend.cluster.ssh.config import Target, find_target
from backend.cluster.ssh.connect_errors import explain, is_local_resource, unreachable
from backend.cluster.ssh.dialling import dial_address, dial_by_program, dial_through
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh.identities import offered_keys
from backend.cluster.ssh.limits import BoundedSocket
from backend.cluster.ssh.passphrases import PASSPHRASES, Passphrases
from backend.job.cluster import Host

# paramiko logs tracebacks of failed connections. This module raises a NodeError instead.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)
_log = logging.getLogger(__name__)

KEEP_ALIVE_S = 5
IDLE_WAKE_S = 1.0
BANNER_TRIES = 3
"""sshd drops connections at random when many arrive at once (MaxStartups 10:30:100 is its default)."""
MAX_JUMPS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """An open connection, and the connection that it goes through."""

    transport: paramiko.Transport
    sock: BoundedSocket
    through: "Connection | None"

    @property
    def alive(self) -> bool:
        return self.transport.is_active()

    def abort(self) -> None:
        """Cut the connection at its socket. This ends every wait for it in any thread. This call never waits."""
        self.sock.abort()
        if self.through:
            self.through.abort()

    def close(self) -> None:
        self.abort()
        self.transport.close()
        self.sock.close()
        if self.through:
            self.through.close()


def open_connection(
    host: Host,
    known_hosts: KnownHosts,
    *,
    passphrases: Passphrases = PASSPHRASES,
    timeout_s: float = 10.0,
    sleep: Callable[[float], None] = time.sleep,
    ssh_folder: Path | None = None,
) -> Connection:
    """Connect, check the host's key and log in, within `timeout_s` in all.

    Raises NodeError, among them UnknownHostKey and ChangedHostKey.
    """
    opener = _Opener(
        known_hosts=known_hosts,
        passphrases=passphrases,
        sleep=sleep,
        ssh_folder=ssh_folder or Path.home() / ".ssh",
    )
    return opener.open(host, Deadline(timeout_s))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opener:
    """Open a connection and the connections that it goes through."""

    known_hosts: KnownHosts
    passphrases: Passphrases
    sleep: Callable[[float], None]
    ssh_folder: Path

    def open(self, host: Host, deadline: Deadline, usual_keys: tuple[Path, ...] = (), depth: int = 0) -> Connection:
        """Open a connection. `usual_keys` are offered if nothing names keys for the host."""
        target = find_target(host, self.ssh_folder, deadline)
        target = replace(target, identity_files=target.identity_files or usual_keys)
        for attempt in range(1, BANNER_TRIES + 1):
            try:
                return self._open_one(target, deadline, depth)
            except (EOFError, OSError, paramiko.SSHException) as error:
                if attempt == BANNER_TRIES or deadline.is_past or not _was_dropped(error):
                    raise explain(error, target) from error
            self.sleep(random.uniform(0.1, 0.5) * attempt)  # noqa: S311 - jitter, no secret
        raise AssertionError("the last try returns or raises")

    def _open_jump(self, target: Target, deadline: Deadline, depth: int) -> Connection:
        if depth == MAX_JUMPS:
            raise NodeError("too_many_jumps", target.node, key="proxy_jump", most=MAX_JUMPS)
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
            return self.open(host, deadline, target.identity_files, depth + 1)
        except NodeError as error:
            error.key = "proxy_jump"
            raise

    def _open_one(self, target: Target, deadline: Deadline, depth: int) -> Connection:
        through = self._open_jump(target, deadline, depth) if target.jump else None
        try:
            sock = _dial(target, through, deadline)
        except BaseException:
            if through:
                through.close()
            raise
        connection = Connection(transport=paramiko.Transport(sock), sock=sock, through=through)  # type: ignore[arg-type]
        try:
            with ended_at(deadline, connection.abort, later_s=FORCE_AFTER_S):
                _negotiate(connection.transport, target, self.known_hosts, deadline)
                with closing(Agent(target.node, deadline)) as agent:
                    keys = offered_keys(target, self.passphrases, self.ssh_folder, agent)
                    _log_in(connection.transport, target, keys, deadline)
        except BaseException as error:
            connection.close()
            if sock.refusal:
                raise unreachable(target, sock.refusal) from error
            if isinstance(error, RuntimeError) and "start new thread" in str(error):  # the text of threading
                raise NodeError("local_resources", target.node, detail=str(error)) from error
            raise
        sock.trust()
        connection.transport.set_keepalive(KEEP_ALIVE_S)
        # paramiko wakes ten times a second to check for the end of the connection. `Connection.close` notifies it.
        sock.settimeout(IDLE_WAKE_S)
        return connection


def _dial(target: Target, through: Connection | None, deadline: Deadline) -> BoundedSocket:
    if target.command:
        return dial_by_program(target.command)
    if through:
        with ended_at(deadline, through.abort, later_s=FORCE_AFTER_S):
            return dial_through(through.transport, target.address, target.port, deadline)
    return dial_address(target.address, target.port, deadline)


def _negotiate(transport: paramiko.Transport, target: Target, known_hosts: KnownHosts, deadline: Deadline) -> None:
    transport.banner_timeout = transport.handshake_timeout = deadline.left_s()
    transport.channel_timeout = deadline.timeout_s
    options = transport.get_security_options()
    with _known_hosts_read(target):
        known = known_hosts.key_types(target.address, target.port)
    # GCM ciphers need no checksum. paramiko compares checksums byte by byte in Python, which is slow.
    options.ciphers = sorted(options.ciphers, key=lambda name: "-gcm@" not in name)
    options.key_types = sorted(options.key_types, key=lambda kind: _plain_type(kind) not in known)
    transport.start_client(timeout=deadline.left_s())
    if not transport.initial_kex_done:
        raise TimeoutError(f"no answer within {deadline.timeout_s:g} s")
    key = transport.get_remote_server_key()
    with _known_hosts_read(target):
        known_hosts.check(target.node, target.address, target.port, key.get_name(), key.asbytes())


@contextmanager
def _known_hosts_read(target: Target) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        code = "local_resources" if is_local_resource(error) else "bad_known_hosts"
        raise NodeError(code, target.node, detail=str(error)) from error


def _plain_type(algorithm: str) -> str:
    """Return the key type of a signature algorithm. RSA keys have several algorithms."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def _log_in(transport: paramiko.Transport, target: Target, keys: Iterable[paramiko.PKey], deadline: Deadline) -> None:
    tried = 0
    for key in keys:
        tried += 1
        transport.auth_timeout = deadline.left_s()
        try:
            if not transport.auth_publickey(target.user, key):
                return
        except paramiko.BadAuthenticationType as error:
            raise _refused(target, tried, f"the server accepts only: {', '.join(error.allowed_types)}") from error
        except paramiko.AuthenticationException as error:
            if deadline.is_past:
                raise TimeoutError(f"no end of the log-in within {deadline.timeout_s:g} s") from error
            _log.info("%s: key %s was not accepted: %s", target.node, key.fingerprint, error)
            if transport.is_active():
                continue
            if tried == 1:  # no key was refused before, so the connection is lost
                raise EOFError("the connection ended during the log-in") from error
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


def _was_dropped(error: Exception) -> bool:
    """Return whether the server dropped the connection before its banner."""
    dropped = isinstance(error, EOFError | ConnectionResetError | BrokenPipeError)
    return dropped or (type(error) is paramiko.SSHException and "banner" in str(error))
