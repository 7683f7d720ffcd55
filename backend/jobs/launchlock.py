"""Who is launching a run: a file lock that the kernel lets go when the launching process dies.

While it is held nobody else judges or stops the run, so nothing is stopped before it was started; once it is free,
a run that is still `starting` was abandoned.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType


class LaunchLock:
    """The lock of one run, for `with`. Raises BlockingIOError while someone holds it."""

    def __init__(self, home: Path, run: str) -> None:
        self._path = home / "launching" / run
        self._file: int | None = None

    def __enter__(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise
        self._file = file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


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
