"""Files with the passwords of demos. Each demo has a new password, so a file is worth nothing after its demo."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.web.passwords import write_password


@contextmanager
def password_files(home: Path) -> Iterator[Callable[[str], Path]]:
    """Yield a function that writes a password into a private file, and remove that file at the end.

    Files of demos that were killed are removed, too. A demo holds a lock on its file, so that another demo of the same
    home leaves it.
    """
    _remove_unlocked(home)
    locks = []

    def write(password: str) -> Path:
        while True:
            path = write_password(home, password)
            with suppress(FileNotFoundError):  # another demo removed it before it was locked
                lock = os.open(path, os.O_RDONLY)
                locks.append(lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(lock), path.stat()):
                    return path

    try:
        yield write
    finally:
        for lock in locks:
            os.close(lock)
        _remove_unlocked(home)


def _remove_unlocked(home: Path) -> None:
    for path in home.glob("password-*.txt"):
        with suppress(OSError):  # locked, or removed by another demo meanwhile
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(lock)
