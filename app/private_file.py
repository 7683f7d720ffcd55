"""Files that only the operator may read: secrets, and the files of the home folder."""

import errno
import os
import secrets
from pathlib import Path


class PrivateFileError(Exception):
    """A file that cannot be used. `code` ends the catalogue key `cli.error.<code>`; `values` fill its placeholders."""

    def __init__(self, code: str, **values: object) -> None:
        super().__init__(code)
        self.code = code
        self.values = values


def read_private(path: Path) -> list[str]:
    """Return a file's lines, stripped.

    Raises PrivateFileError if it is missing, not text, or readable by other users.
    """
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PrivateFileError("private_file_unreadable", path=str(path)) from error
    if mode & 0o077:
        raise PrivateFileError("private_file_open", path=str(path))
    return [line.strip() for line in lines]


def is_open_to_others(path: Path) -> bool:
    """Return whether other users can read or change a file, or its group can change it.

    The group may read it: Debian stores TLS keys with mode 0640 and group ssl-cert.
    """
    return bool(path.stat().st_mode & 0o027)


def write_atomically(path: Path, text: str, *, replace: bool) -> None:
    """Write a file with mode 0600 atomically. Raises FileExistsError if it exists and `replace` is false."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from error
    temporary = path.parent / f".{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        if replace:
            temporary.replace(path)
        else:
            # Unlike a rename, a hard link never replaces an existing file.
            path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)
