"""The backup of the database: a complete, checked copy beside it, for the case that the disk damages the original."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

EVERY_S = 86400.0
"""Age at which the backup is replaced."""


def backup_path(path: Path) -> Path:
    """Return the path of the backup of a database."""
    return path.with_name(f"{path.name}.spare")


def back_up(path: Path, now: float) -> bool:
    """Copy the database if its backup is a day old or holds a deleted run; return whether it was copied.

    Raises sqlite3.Error when the database is damaged, OSError when the disk has no space for the copy. The previous
    backup stays in both cases.
    """
    backup = backup_path(path)
    if (
        backup.exists()
        and 0 <= now - backup.stat().st_mtime < EVERY_S
        and not _deleted_since(path, backup.stat().st_mtime)
    ):
        return False
    part = backup.with_name(f"{backup.name}.part")
    part.unlink(missing_ok=True)
    if shutil.disk_usage(path.parent).free < 2 * _bytes_in_use(path):
        raise OSError(None, "there is no room for a copy", str(backup))
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    connection = _opened(path)
    try:
        (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(result)
        connection.execute("VACUUM INTO ?", (str(part),))
        os.utime(part, (now, now))
        # VACUUM INTO does not sync. Without a sync, a power cut could destroy the previous backup and the new one.
        _sync(part)
        os.replace(part, backup)
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
    """Return the size of the pages in use. The copy has none of the free pages that deletions leave."""
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
