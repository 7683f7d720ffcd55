"""Files that only the operator may read: secrets, and what the home folder keeps."""

import errno
import os
import secrets
from pathlib import Path


class PrivateFileError(Exception):
    """A file that cannot be used; `code` and `values` name the words for it (`cli.error.<code>`)."""

    def __init__(self, code: str, **values: object) -> None:
        super().__init__(code)
        self.code = code
        self.values = values


def read_private(path: Path) -> list[str]:
    """A file's lines, stripped; PrivateFileError when it is missing, no text, or open to other users."""
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PrivateFileError("private_file_unreadable", path=str(path)) from error
    if mode & 0o077:
        raise PrivateFileError("private_file_open", path=str(path))
    return [line.strip() for line in lines]


def is_open_to_others(path: Path) -> bool:
    """Whether users outside the file's group can read or change it, or its group can change it.

    For TLS keys, a group that may read them is common: Debian keeps them at 0640 in the group ssl-cert.
    """
    return bool(path.stat().st_mode & 0o027)


def write_atomically(path: Path, text: str, *, replace: bool) -> None:
    """Write a file of mode 0600, whole or not at all; FileExistsError where it is there and may not be replaced."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from error
    fresh = path.parent / f".{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        if replace:
            fresh.replace(path)
        else:
            # Unlike a rename, a link never takes the place of what is there.
            path.hardlink_to(fresh)
    finally:
        fresh.unlink(missing_ok=True)
