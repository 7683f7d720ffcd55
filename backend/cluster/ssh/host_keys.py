"""Known, new and changed host keys.

The user's own ~/.ssh/known_hosts is read and never written. Keys that the user confirmed in Megaboard are in a file of
its own. The user sees the fingerprint of an unknown key and confirms it. A changed or revoked key cannot be confirmed.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.cluster.node import NodeError
from backend.cluster.ssh.config_tokens import in_list


@dataclass(frozen=True, kw_only=True, slots=True)
class HostKey:
    """A key that a host presented."""

    host: str
    port: int
    key_type: str
    fingerprint: str
    """SHA256:..., as `ssh-keygen -lf` prints it."""
    line: str
    """The line for a known_hosts file."""


class UnknownHostKey(NodeError):
    """The host is not known yet. The user may confirm `host_key`, which the host presented."""

    def __init__(self, node: str, key: HostKey) -> None:
        super().__init__("host_key_unknown", node, key_type=key.key_type, fingerprint=key.fingerprint)
        self.host_key = key


class ChangedHostKey(NodeError):
    """The host has another known key, or this key was revoked."""

    def __init__(self, node: str, key: HostKey, known: "_Entry") -> None:
        where = f"{known.path}:{known.line_number}"
        expected = fingerprint(known.blob)
        super().__init__("host_key_changed", node, fingerprint=key.fingerprint, expected=expected, where=where)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """One line of a known_hosts file."""

    path: Path
    line_number: int
    revoked: bool
    names: str
    key_type: str
    blob: bytes

    def matches(self, name: str) -> bool:
        """Return whether the line is for `name`. Names may be hashed, patterns, or negated.

        The format is in sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
        """
        if self.names.startswith("|1|"):
            return _same_hashed_name(self.names, name)
        return in_list(name, self.names.lower())


class KnownHosts:
    """The known host keys of this installation. Several threads may use it."""

    def __init__(self, app_file: Path, user_file: Path | None = None) -> None:
        self._app_file = app_file
        self._files = [user_file, app_file] if user_file else [app_file]
        self._lock = threading.Lock()
        self._read: dict[Path, _KnownHostsFile] = {}

    def key_types(self, host: str, port: int) -> list[str]:
        """Return the types of the known keys of `host`. A client should request these types first."""
        return [entry.key_type for entry in self._entries(entry_name(host, port)) if not entry.revoked]

    def check(self, node: str, host: str, port: int, key_type: str, blob: bytes) -> None:
        """Return if this key is known for this host. Raises UnknownHostKey or ChangedHostKey."""
        name = entry_name(host, port)
        entries = self._entries(name)
        line = f"{name} {key_type} {base64.b64encode(blob).decode()}"
        key = HostKey(host=host, port=port, key_type=key_type, fingerprint=fingerprint(blob), line=line)
        for entry in entries:
            if entry.revoked and hmac.compare_digest(entry.blob, blob):
                raise ChangedHostKey(node, key, entry)
        good = [entry for entry in entries if not entry.revoked]
        if any(hmac.compare_digest(entry.blob, blob) for entry in good):
            return
        if good:
            raise ChangedHostKey(node, key, good[0])
        raise UnknownHostKey(node, key)

    def accept(self, key: HostKey) -> None:
        """Store a key that the user confirmed. Raises ChangedHostKey if the host got another known key meanwhile."""
        with self._lock:
            blob = base64.b64decode(key.line.split()[2])
            try:
                return self.check(key.host, key.host, key.port, key.key_type, blob)
            except UnknownHostKey:
                self._append(f"{key.line}\n".encode())

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self._app_file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            size = os.fstat(descriptor).st_size
            # A power loss may have cut the last line. The new line must not be appended to it.
            is_cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            file.write(b"\n" + line if is_cut else line)

    def _entries(self, name: str) -> list[_Entry]:
        return [entry for path in self._files for entry in self._file(path).entries(name)]

    def _file(self, path: Path) -> "_KnownHostsFile":
        """Return the file. It is read again when it has changed."""
        try:
            status = path.stat()
            state = (status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            state = None
        file = self._read.get(path)
        if file is None or file.state != state:
            file = self._read[path] = _KnownHostsFile(path, state)
        return file


class _KnownHostsFile:
    """Entries of a known_hosts file in one state. A look-up of a plain name does not read all entries."""

    def __init__(self, path: Path, state: tuple[int, ...] | None) -> None:
        self.state = state
        self._plain: dict[str, list[_Entry]] = {}
        self._others: list[_Entry] = []
        for entry in _parse(path):
            if re.fullmatch(r"[A-Za-z0-9._-]+|\[[A-Za-z0-9.:_-]+\]:\d+", entry.names):
                self._plain.setdefault(entry.names.lower(), []).append(entry)
            else:
                self._others.append(entry)

    def entries(self, name: str) -> list[_Entry]:
        """Return the entries for a name, in the order of the file."""
        entries = [*self._plain.get(name, ()), *(entry for entry in self._others if entry.matches(name))]
        return sorted(entries, key=lambda entry: entry.line_number)


def entry_name(host: str, port: int) -> str:
    """Return the name of a host in known_hosts: the host itself at port 22, or else `[host]:port`."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


def fingerprint(blob: bytes) -> str:
    """Return `SHA256:...`, as OpenSSH prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _same_hashed_name(pattern: str, name: str) -> bool:
    try:
        _, _, salt, digest = pattern.split("|")
        # The file format requires HMAC-SHA1.
        own_digest = hmac.new(base64.b64decode(salt), name.encode(), "sha1").digest()
        return hmac.compare_digest(own_digest, base64.b64decode(digest))
    except ValueError:
        return False


def _parse(path: Path) -> Iterator[_Entry]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked"):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except binascii.Error:  # OpenSSH ignores such a line too
            continue
        revoked = marker == "@revoked"
        yield _Entry(path=path, line_number=number, revoked=revoked, names=words[0], key_type=words[1], blob=blob)
