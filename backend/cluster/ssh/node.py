"""A node over SSH. Each command has a channel of its own, and all files share one SFTP channel.

paramiko's time-outs only detect inactivity, and some of its waits have none. Here every call has one deadline for all
of its waits, and limits.py limits the bytes that a server sends.
"""

import io
import logging
import struct
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import paramiko

from backend.cluster.deadlines import FORCE_AFTER_S, Deadline, ended_at
from backend.cluster.node import OUTPUT_BYTES, ByteStream, NodeError, Result, tail
from backend.cluster.ssh.channel import TooMuchOutput, run_command
from backend.cluster.ssh.connect_errors import is_local_resource
from backend.cluster.ssh.connection import Connection, open_connection
from backend.cluster.ssh.dialling import dial_loopback
from backend.cluster.ssh.host_keys import KnownHosts
from backend.cluster.ssh.limits import bounded_channel
from backend.cluster.ssh.passphrases import PASSPHRASES, Passphrases
from backend.cluster.ssh.sftp import NotAFile, make_folder, path_exists, read_file, write_file
from backend.job.cluster import Host

_log = logging.getLogger(__name__)

COMMAND_CHANNELS = 3
"""With the SFTP channel a node has four channels, well below sshd's default MaxSessions of 10."""
FILE_TIMEOUT_S = 15.0
"""Time of a whole call that reads or writes a small file, with the wait for other such calls."""
SLOWEST_BYTES_PER_S = 64 << 10
"""A large file has more time, at this rate."""
FILL_TIMEOUT_S = 60.0
ROOM_S = 0.1
"""Time between two tries to open a channel on a server whose channels are all in use."""
_NO_ANSWER = "Timeout opening channel"
"""paramiko's message."""

T = TypeVar("T")


def connect(
    host: Host, known_hosts: KnownHosts, *, passphrases: Passphrases = PASSPHRASES, timeout_s: float = 10.0
) -> "SshNode":
    """Return a connected node. Raises NodeError. UnknownHostKey has the key that the user may confirm."""
    node = SshNode(host, known_hosts, passphrases=passphrases, timeout_s=timeout_s)
    node.open()
    return node


class SshNode:
    """Implementation of `Node` over one SSH connection.

    A call whose connection is lost raises NodeError(lost), because its command may have run. The next call connects
    again.
    """

    def __init__(
        self,
        host: Host,
        known_hosts: KnownHosts,
        *,
        passphrases: Passphrases = PASSPHRASES,
        timeout_s: float = 10.0,
        file_timeout_s: float = FILE_TIMEOUT_S,
    ) -> None:
        self._host = host
        self._known_hosts = known_hosts
        self._passphrases = passphrases
        self._timeout_s = timeout_s
        self._file_timeout_s = file_timeout_s
        self._connection: Connection | None = None
        self._connection_lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(COMMAND_CHANNELS)
        self._sftp: paramiko.SFTPClient | None = None
        self._regular: set[str] = set()
        """Paths that were regular files on this file channel. A path that became a pipe blocks the channel."""
        # paramiko confuses the answers when two threads use one SFTP channel.
        self._sftp_lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._host.name

    def open(self) -> None:
        """Connect now instead of at the first call."""
        with self._translated(self._timeout_s):
            self._connected(Deadline(self._timeout_s))

    def run(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", max_bytes: int = OUTPUT_BYTES
    ) -> Result:
        deadline = Deadline(timeout_s)
        if not self._slots.acquire(timeout=timeout_s):
            raise self._timed_out(timeout_s)
        try:
            with self._translated(timeout_s), self._channel(deadline) as channel:
                return run_command(channel, argv, stdin, deadline, max_bytes)
        except TooMuchOutput as error:
            raise NodeError("too_much_output", self.name, command=argv[0], limit=max_bytes) from error
        finally:
            self._slots.release()

    def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        return self._over_sftp(path, lambda sftp: read_file(sftp, path, offset, limit, self._regular), limit)

    def write(self, path: str, data: bytes) -> None:
        self._over_sftp(path, lambda sftp: write_file(sftp, path, data), len(data))

    def fill_folder(self, path: str, files: Mapping[str, bytes], folders: Sequence[str] = ()) -> None:
        unpack = ["sh", "-c", 'umask 077 && mkdir -p "$0" && exec tar -C "$0" -xf -', path]
        result = self.run(unpack, timeout_s=FILL_TIMEOUT_S, stdin=_packed(files, folders))
        if result.code != 0:
            raise NodeError("node_io", self.name, path=path, detail=tail(result.err or result.out))

    def make_folder(self, path: str) -> None:
        self._over_sftp(path, lambda sftp: make_folder(sftp, path))

    def exists(self, path: str) -> bool:
        return self._over_sftp(path, lambda sftp: path_exists(sftp, path))

    def dial(self, port: int, *, timeout_s: float) -> ByteStream:
        deadline = Deadline(timeout_s)
        with self._translated(timeout_s):
            connection = self._connected(deadline)
            try:
                with ended_at(deadline, connection.abort, later_s=FORCE_AFTER_S):
                    channel = dial_loopback(connection.transport, port, deadline)
            except paramiko.ChannelException as error:
                raise NodeError("dial_refused", self.name, port=port, detail=error.text) from error
        channel.settimeout(timeout_s)
        return channel

    def close(self) -> None:
        with self._connection_lock:
            connection, self._connection, self._sftp = self._connection, None, None
        if connection:
            connection.close()

    def _connected(self, deadline: Deadline) -> Connection:
        if not self._connection_lock.acquire(timeout=deadline.left_s()):
            raise self._timed_out(deadline.timeout_s)
        try:
            if self._connection is None or not self._connection.alive:
                if self._connection:
                    self._connection.close()
                self._sftp = None
                self._connection = open_connection(
                    self._host,
                    self._known_hosts,
                    passphrases=self._passphrases,
                    timeout_s=min(self._timeout_s, deadline.left_s()),
                )
            return self._connection
        finally:
            self._connection_lock.release()

    def _drop(self, connection: Connection) -> None:
        """Close a connection that has not answered. Behind a jump host nothing else detects a dead connection."""
        with self._connection_lock:
            if self._connection is connection:
                connection.close()

    @contextmanager
    def _channel(self, deadline: Deadline) -> Iterator[paramiko.Channel]:
        connection, channel = self._open_session(deadline, give_way=True)
        with ended_at(deadline, connection.abort, later_s=FORCE_AFTER_S):
            try:
                yield channel
            finally:
                channel.close()

    def _open_session(self, deadline: Deadline, *, give_way: bool) -> tuple[Connection, paramiko.Channel]:
        """Wait for a free channel and open it. sshd's MaxSessions may be as low as 1.

        With `give_way`, the file channel is closed if the server has no free channel.
        """
        while True:
            connection = self._connected(deadline)
            left_s = deadline.left_s()
            try:
                with ended_at(deadline, connection.abort, later_s=FORCE_AFTER_S):
                    return connection, bounded_channel(
                        connection.transport.open_session(timeout=min(left_s, self._timeout_s))
                    )
            except paramiko.ChannelException:
                if deadline.is_past:
                    raise
            except paramiko.SSHException as error:
                if _NO_ANSWER in str(error) and left_s >= self._timeout_s:
                    self._drop(connection)
                raise
            if give_way and self._sftp_lock.acquire(timeout=ROOM_S):
                try:
                    self._forget_sftp(connection)
                finally:
                    self._sftp_lock.release()
            time.sleep(ROOM_S)

    def _over_sftp(self, path: str, action: Callable[[paramiko.SFTPClient], T], size: int = 0) -> T:
        """Call `action`. It is called once more if the server lost only the file channel."""
        deadline = Deadline(self._file_timeout_s + size / SLOWEST_BYTES_PER_S)
        if not self._sftp_lock.acquire(timeout=deadline.timeout_s):
            raise self._timed_out(deadline.timeout_s)
        try:
            connection = self._connection
            try:
                return self._try_over_sftp(path, action, deadline)
            except NodeError as error:
                if (
                    error.code != "lost"
                    or connection is None
                    or connection is not self._connection
                    or not connection.alive
                ):
                    raise
                _log.warning("%s: the file channel was lost, opening another: %s", self.name, error)
            return self._try_over_sftp(path, action, deadline)
        finally:
            self._sftp_lock.release()

    def _try_over_sftp(self, path: str, action: Callable[[paramiko.SFTPClient], T], deadline: Deadline) -> T:
        connection = self._connection
        try:
            with self._translated(deadline.timeout_s):
                connection, sftp = self._sftp_channel(deadline)
                with (
                    ended_at(deadline, connection.abort, later_s=FORCE_AFTER_S),
                    ended_at(deadline, sftp.close),
                ):
                    return action(sftp)
        except FileNotFoundError as error:
            raise NodeError("missing_file", self.name, path=path) from error
        except NotAFile as error:
            raise NodeError("not_a_file", self.name, path=path) from error
        except NodeError:
            self._forget_sftp(connection)
            raise
        except OSError as error:
            raise NodeError("node_io", self.name, path=path, detail=str(error)) from error
        except (ValueError, struct.error) as error:  # an answer that paramiko cannot read
            self._forget_sftp(connection)
            raise NodeError("node_io", self.name, path=path, detail=str(error)) from error

    def _forget_sftp(self, connection: Connection | None) -> None:
        """Close the file channel, whose next answer may belong to the previous request. The next call opens another."""
        sftp, self._sftp = self._sftp, None
        if sftp is None or connection is None:
            return
        try:
            with ended_at(Deadline(FORCE_AFTER_S), connection.abort):
                sftp.close()
        except (EOFError, OSError, paramiko.SSHException) as error:
            _log.info("%s: the file channel could not be closed: %r", self.name, error)

    def _sftp_channel(self, deadline: Deadline) -> tuple[Connection, paramiko.SFTPClient]:
        connection = self._connected(deadline)  # a lost connection also closes the file channel
        channel = self._sftp.get_channel() if self._sftp else None
        if self._sftp is None or channel is None or channel.closed:
            connection, channel = self._open_session(deadline, give_way=False)
            with (
                ended_at(deadline, connection.abort, later_s=FORCE_AFTER_S),
                ended_at(deadline, channel.close),
            ):
                channel.invoke_subsystem("sftp")
                channel.settimeout(self._file_timeout_s)
                self._sftp = paramiko.SFTPClient(channel)
                self._regular.clear()
        return connection, self._sftp

    @contextmanager
    def _translated(self, timeout_s: float) -> Iterator[None]:
        """Translate what paramiko raises when a channel or a connection fails into NodeError."""
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
            # paramiko's message for a closed channel. Every other error comes from the file system.
            if str(error) == "Socket is closed":
                raise NodeError("lost", self.name, detail=str(error)) from error
            if is_local_resource(error):
                raise NodeError("local_resources", self.name, detail=str(error)) from error
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
            # The current time, because tar warns of files from the year 1970.
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
