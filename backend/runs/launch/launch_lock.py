"""File lock of the process that launches a run. The kernel releases it when that process dies.

While the lock is held, no other process supervises or stops the run. A run that is `starting` without a held lock was
abandoned.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def launch_lock(home: Path, run: str) -> Iterator[None]:
    """Hold the lock of one run. Raises BlockingIOError while another process holds it."""
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
        os.close(file)  # The previous holder removed the file after we opened it: no other process would see our lock.


def is_launching(home: Path, run: str) -> bool:
    """Return whether a living process launches the run."""
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
