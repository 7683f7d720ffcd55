"""File operations of SshNode over one SFTP channel."""

import logging
import posixpath
import secrets
import stat

import paramiko

_log = logging.getLogger(__name__)


class NotAFile(Exception):
    """The path leads to a folder, a device or a pipe."""


def read_file(sftp: paramiko.SFTPClient, path: str, offset: int, limit: int, regular: set[str]) -> bytes:
    """Return at most `limit` bytes of a file from `offset`. Raises OSError and NotAFile.

    `regular` has the paths that were regular files before. A check at each read would make reads a third slower.
    """
    if path not in regular:
        # Opening a pipe would block the node's file server forever, even after the channel is closed.
        mode = sftp.stat(path).st_mode
        if mode is not None and not stat.S_ISREG(mode):
            raise NotAFile(path)
        regular.add(path)
    with sftp.open(path, "rb") as file:
        file.seek(offset)
        data: bytes = file.read(limit)
        return data


def write_file(sftp: paramiko.SFTPClient, path: str, data: bytes) -> None:
    """Write a file atomically, accessible to this user only. Raises OSError."""
    folder, name = posixpath.split(path)
    part = posixpath.join(folder, f".{name}.{secrets.token_hex(4)}")
    try:
        with sftp.open(part, "wx") as file:
            file.chmod(0o600)
            file.write(data)  # not pipelined: paramiko would ignore the server's answer, such as a full disk
        sftp.posix_rename(part, path)
    except OSError:
        _remove_if_there(sftp, part)
        raise


def make_folder(sftp: paramiko.SFTPClient, path: str) -> None:
    """Make a folder and its missing parents. Raises OSError."""
    try:
        sftp.mkdir(path, 0o700)
    except FileNotFoundError:
        if posixpath.dirname(path) in ("", "/", path):
            raise
        make_folder(sftp, posixpath.dirname(path))
        make_folder(sftp, path)
    except OSError:
        # SFTP has no errno for "exists". The folder may be older, or another thread or node created it.
        if not path_exists(sftp, path):
            raise


def path_exists(sftp: paramiko.SFTPClient, path: str) -> bool:
    """Return whether the file or folder exists. Raises OSError."""
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
