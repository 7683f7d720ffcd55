"""Who is launching a run: a file lock that the kernel lets go when the launching process dies.

While it is held nobody else judges or stops the run, so nothing is stopped before it was started; once it is free,
a run that is still `starting` was abandoned.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def launch_lock(home: Path, run: str) -> Iterator[None]:
    """The lock of one run. Raises BlockingIOError while someone holds it."""
    path = home / "launching" / run
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = _locked(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def _locked(path: Path) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise
        if os.fstat(file).st_nlink:
            return file
        os.close(file)  # whoever held it has removed it since it was opened: nobody else would see the lock


def is_launching(home: Path, run: str) -> bool:
    """Whether a living process is launching the run."""
    try:
        file = os.open(home / "launching" / run, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
