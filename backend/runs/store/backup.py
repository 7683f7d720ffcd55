"""A spare copy of the database beside it, whole and checked: what there is to go back to when the disk damages it."""

import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

_log = logging.getLogger(__name__)

EVERY_S = 86400.0
"""The age at which a copy is made anew."""
LOOK_EVERY_S = 600.0


def spare_of(path: Path) -> Path:
    """Where the copy of a database stands."""
    return path.with_name(f"{path.name}.spare")


def keep_spare(path: Path, now: float) -> bool:
    """Copy the database if its copy is a day old or holds a deleted run; return whether it was copied.

    Raises sqlite3.Error when the database is damaged, OSError when the copy finds no room; the last copy stays then.
    """
    spare = spare_of(path)
    if (
        spare.exists()
        and 0 <= now - spare.stat().st_mtime < EVERY_S
        and not _deleted_since(path, spare.stat().st_mtime)
    ):
        return False
    part = spare.with_name(f"{spare.name}.part")
    part.unlink(missing_ok=True)
    if shutil.disk_usage(path.parent).free < 2 * _bytes_in_use(path):
        raise OSError(None, "there is no room for a copy", str(spare))
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    connection = _opened(path)
    try:
        (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if said != "ok":
            raise sqlite3.DatabaseError(said)
        connection.execute("VACUUM INTO ?", (str(part),))
        os.utime(part, (now, now))
        # VACUUM INTO leaves that to its caller: a power cut must not take the last copy with the new one.
        _sync(part)
        os.replace(part, spare)
        _sync(path.parent)
    finally:
        connection.close()
        part.unlink(missing_ok=True)
    return True


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)


def _deleted_since(path: Path, when: float) -> bool:
    with closing(_opened(path)) as connection:
        newest = connection.execute("SELECT max(cleared) FROM deleted_runs").fetchone()[0]
    return newest is not None and newest >= when


def _bytes_in_use(path: Path) -> int:
    """The copy has none of the free pages that deletions leave."""
    with closing(_opened(path)) as connection:
        size, count, free = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
        )
    return int(size * (count - free))


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class SpareKeeper:
    """Keeps the copy fresh in a thread of its own, from start() to close()."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="spare copy", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; a copy that is being made is left to the next server."""
        self._closing.set()

    def _keep(self) -> None:
        while not self._closing.is_set():
            try:
                keep_spare(self._path, self._clock())
            except (sqlite3.Error, OSError) as error:
                _log.error("no spare copy of %s: %s", self._path, error)
            self._closing.wait(LOOK_EVERY_S)
