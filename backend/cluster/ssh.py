"""A node over SSH: commands on their own channels, files over one kept SFTP channel, connected again on demand.

paramiko's own time-outs are for inactivity, and some of its waits have none; every call here has a deadline of its own.
"""

import io
import logging
import posixpath
import secrets
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import paramiko

from backend.cluster.channel import closed_after, run_command
from backend.cluster.hostkeys import KnownHosts
from backend.cluster.link import Link, open_link
from backend.cluster.node import NodeError, Result, tail
from backend.cluster.passphrases import PASSPHRASES, Passphrases
from backend.job.cluster import Host

_log = logging.getLogger(__name__)

COMMAND_CHANNELS = 3
"""With the SFTP channel four a node, well below sshd's default MaxSessions of 10."""
FILE_TIMEOUT_S = 15.0
FILL_TIMEOUT_S = 60.0
ROOM_S = 0.1
"""Between two tries to open a channel on a server that has all it allows."""
_NO_ANSWER = "Timeout opening channel"
"""paramiko's words."""

T = TypeVar("T")


def connect(
    host: Host, known_hosts: KnownHosts, *, passphrases: Passphrases = PASSPHRASES, timeout_s: float = 10.0
) -> "SshNode":
    """A connected node. Raises NodeError: UnknownHostKey carries the key for the user to confirm."""
    node = SshNode(host, known_hosts, passphrases=passphrases, timeout_s=timeout_s)
    node.open()
    return node


class SshNode:
    """Keeps `Node` over one SSH connection.

    A connection that was lost is opened again by the next call; the call during which it is lost raises
    NodeError(lost), because a command may have run.
    """

    def __init__(
        self,
        host: Host,
        known_hosts: KnownHosts,
        *,
        passphrases: Passphrases = PASSPHRASES,
        timeout_s: float = 10.0,
    ) -> None:
        self._host = host
        self._known_hosts = known_hosts
        self._passphrases = passphrases
        self._timeout_s = timeout_s
        self._link: Link | None = None
        self._link_lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(COMMAND_CHANNELS)
        self._sftp: paramiko.SFTPClient | None = None
        # paramiko mixes up the answers when two threads use one SFTP channel.
        self._sftp_lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._host.name

    def open(self) -> None:
        """Connect now instead of at the first call."""
        self._transport()

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Result:
        deadline = time.monotonic() + timeout_s
        if not self._slots.acquire(timeout=timeout_s):
            raise self._timed_out(timeout_s)
        try:
            with self._translated(timeout_s), self._channel(timeout_s) as channel:
                return run_command(channel, argv, stdin, timeout_s, deadline)
        finally:
            self._slots.release()

    def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        def read(sftp: paramiko.SFTPClient) -> bytes:
            with sftp.open(path, "rb") as file:
                file.seek(offset)
                return file.read(limit)

        return self._over_sftp(path, read)

    def write(self, path: str, data: bytes) -> None:
        folder, name = posixpath.split(path)
        part = posixpath.join(folder, f".{name}.{secrets.token_hex(4)}")

        def write(sftp: paramiko.SFTPClient) -> None:
            try:
                with sftp.open(part, "wx") as file:
                    file.chmod(0o600)
                    file.set_pipelined(True)
                    file.write(data)
                sftp.posix_rename(part, path)
            except OSError:
                _remove_if_there(sftp, part)
                raise

        self._over_sftp(path, write)

    def fill_folder(self, path: str, files: Mapping[str, bytes], folders: Sequence[str] = ()) -> None:
        unpack = ["sh", "-c", 'umask 077 && mkdir -p "$0" && exec tar -C "$0" -xf -', path]
        result = self.run(unpack, timeout_s=FILL_TIMEOUT_S, stdin=_packed(files, folders))
        if result.code != 0:
            raise NodeError("node_io", self.name, path=path, detail=tail(result.err or result.out))

    def make_folder(self, path: str) -> None:
        self._over_sftp(path, lambda sftp: _make_folder(sftp, path))

    def exists(self, path: str) -> bool:
        return self._over_sftp(path, lambda sftp: _is_there(sftp, path))

    def close(self) -> None:
        with self._link_lock:
            link, self._link, self._sftp = self._link, None, None
        if link:
            link.close()

    def _transport(self) -> paramiko.Transport:
        with self._link_lock:
            if self._link is None or not self._link.alive:
                if self._link:
                    self._link.close()
                self._sftp = None
                self._link = open_link(
                    self._host, self._known_hosts, passphrases=self._passphrases, timeout_s=self._timeout_s
                )
            return self._link.transport

    def _drop(self, transport: paramiko.Transport) -> None:
        """Give up a connection that has not answered: behind a jump host nobody else finds out that it is dead."""
        with self._link_lock:
            if self._link and self._link.transport is transport:
                self._link.close()

    @contextmanager
    def _channel(self, timeout_s: float) -> Iterator[paramiko.Channel]:
        channel = self._open_session(timeout_s, give_way=True)
        try:
            yield channel
        finally:
            channel.close()

    def _open_session(self, timeout_s: float, *, give_way: bool) -> paramiko.Channel:
        """A channel, when there is room for it: sshd's MaxSessions may be as low as 1.

        `give_way`: the files' channel, kept for the next read, is closed where there is none.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            transport = self._transport()
            try:
                return transport.open_session(timeout=min(timeout_s, self._timeout_s))
            except paramiko.ChannelException:
                if time.monotonic() > deadline:
                    raise
            except paramiko.SSHException as error:
                if _NO_ANSWER in str(error) and timeout_s >= self._timeout_s:
                    self._drop(transport)
                raise
            if give_way and self._sftp_lock.acquire(timeout=ROOM_S):
                sftp, self._sftp = self._sftp, None
                if sftp:
                    sftp.close()
                self._sftp_lock.release()
            time.sleep(ROOM_S)

    def _over_sftp(self, path: str, action: Callable[[paramiko.SFTPClient], T]) -> T:
        """Do `action`, which may be done twice: once more when the server lost the files' channel alone."""
        with self._sftp_lock:
            link = self._link
            try:
                return self._try_over_sftp(path, action)
            except NodeError as error:
                if error.code != "lost" or link is None or link is not self._link or not link.alive:
                    raise
                _log.warning("%s: the file channel was lost, opening another: %s", self.name, error)
            return self._try_over_sftp(path, action)

    def _try_over_sftp(self, path: str, action: Callable[[paramiko.SFTPClient], T]) -> T:
        try:
            with self._translated(FILE_TIMEOUT_S):
                return action(self._sftp_channel())
        except FileNotFoundError as error:
            raise NodeError("missing_file", self.name, path=path) from error
        except NodeError:
            # After a time-out the channel's next answer would belong to the last question.
            sftp, self._sftp = self._sftp, None
            if sftp:
                sftp.close()
            raise
        except OSError as error:
            raise NodeError("node_io", self.name, path=path, detail=str(error)) from error

    def _sftp_channel(self) -> paramiko.SFTPClient:
        self._transport()  # a lost connection takes the files' channel with it
        kept = self._sftp.get_channel() if self._sftp else None
        if self._sftp is None or kept is None or kept.closed:
            channel = self._open_session(FILE_TIMEOUT_S, give_way=False)
            with closed_after(channel, self._timeout_s):
                channel.invoke_subsystem("sftp")
                channel.settimeout(FILE_TIMEOUT_S)
                self._sftp = paramiko.SFTPClient(channel)
        return self._sftp

    @contextmanager
    def _translated(self, timeout_s: float) -> Iterator[None]:
        """Turns what paramiko raises when a channel or a connection fails into NodeError."""
        try:
            yield
        except TimeoutError as error:
            raise self._timed_out(timeout_s) from error
        except paramiko.ChannelException as error:
            raise NodeError("refused", self.name, detail=error.text) from error
        except paramiko.SFTPError as error:
            raise NodeError("shell_prints", self.name, detail=str(error)) from error
        except (EOFError, paramiko.SSHException, ConnectionError) as error:
            if _NO_ANSWER in str(error):
                raise self._timed_out(timeout_s) from error
            raise NodeError("lost", self.name, detail=str(error) or type(error).__name__) from error
        except OSError as error:
            # What paramiko says of a closed channel; all else is the file system's answer.
            if str(error) == "Socket is closed":
                raise NodeError("lost", self.name, detail=str(error)) from error
            raise

    def _timed_out(self, timeout_s: float) -> NodeError:
        return NodeError("timeout", self.name, seconds=round(timeout_s))


def _packed(files: Mapping[str, bytes], folders: Sequence[str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o700
            tar.addfile(entry)
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            # Of now: a node whose tar finds the year 1970 warns of it.
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _make_folder(sftp: paramiko.SFTPClient, path: str) -> None:
    try:
        sftp.mkdir(path, 0o700)
    except FileNotFoundError:
        if posixpath.dirname(path) in ("", "/", path):
            raise
        _make_folder(sftp, posixpath.dirname(path))
        _make_folder(sftp, path)
    except OSError:
        # SFTP has no errno for "exists": it may be an older one, or another thread's or node's.
        if not _is_there(sftp, path):
            raise


def _is_there(sftp: paramiko.SFTPClient, path: str) -> bool:
    try:
        sftp.stat(path)
    except FileNotFoundError:
        return False
    return True


def _remove_if_there(sftp: paramiko.SFTPClient, path: str) -> None:
    try:
        sftp.remove(path)
    except OSError as error:
        _log.info("could not remove %s: %s", path, error)
