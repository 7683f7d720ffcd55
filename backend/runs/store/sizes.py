"""The size of the home folder's database, by run and by kind of data, and its growth.

Sizes of files are measured. Sizes of runs are estimated from their rows, because SQLite reports the pages of a table
but not those of a run.
"""

import os
import shutil
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backend.job.problems import Problem, ProblemsError
from backend.runs.collect import flight_records
from backend.runs.store import deletion, run_store
from backend.runs.store.archive import archive_folder
from backend.runs.store.backup import backup_path
from backend.runs.store.store import Store

POINT_BYTES, ROW_BYTES = 130, 40
"""Overhead of a row. The run's id is in the row and in each index; measured with dbstat."""
SAMPLE_EVERY_S, SAMPLES_KEPT_S = 3600.0, 8 * 86400.0
GROWTH_OVER_S, GROWTH_LEAST_S = 86400.0, 1800.0
"""Growth is measured over the last day, or over less while there is less."""
KINDS = ("curves", "other_ranks", "logs", "heartbeats", "events", "usage", "rest", "flight_records")
_KIND_OF_TABLE = {
    **{"log_chunks": "logs", "heartbeats": "heartbeats", "events": "events", "usage": "usage"},
    **dict.fromkeys(("metrics", "metric_series", "metric_levels"), "curves"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSize:
    """The size of one run; estimated, except for the flight records."""

    run: str
    name: str
    ended: float | None
    kinds: Mapping[str, int]
    """Kind -> bytes, in the order of KINDS. curves: the points of rank 0 and logged metrics. other_ranks: the points of
    the other ranks.
    """
    is_thinned: bool
    """Its raw rows were dropped (thinning.py)."""
    kept_by: Problem | None
    """Why it cannot be deleted now; None where it can."""

    @property
    def total(self) -> int:
        return sum(self.kinds.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """The measured sizes of the home folder's files, in bytes."""

    database: int
    """Size with the write-ahead log."""
    reusable: int
    """Free pages in it: new rows fill them before the file grows."""
    gives_back: bool
    """Deletions make the file smaller; otherwise it has to be compacted once."""
    spare: int
    archives: int
    flight_records: int
    disk_free: int
    growth_per_day: float | None
    """Bytes per day by which the pages in use grow; None without a sample that is half an hour old or older."""
    growth_over_s: float
    """The period over which the growth was measured."""


def measure(store: Store, home: Path, now: float) -> Storage:
    """Return the present sizes of the files."""
    with store.read() as connection:
        page, free = (pragma(connection, name) for name in ("page_size", "freelist_count"))
        gives_back = pragma(connection, "auto_vacuum") == 2
        used = page * (pragma(connection, "page_count") - free)
        growth, over_s = _growth(connection, used, now)
    return Storage(
        database=sum(_size(store.path.with_name(store.path.name + end)) for end in ("", "-wal", "-shm")),
        reusable=page * free,
        gives_back=gives_back,
        spare=_size(backup_path(store.path)),
        archives=_size_of_folder(archive_folder(home)),
        flight_records=_size_of_folder(home / "flight_records"),
        disk_free=shutil.disk_usage(home).free,
        growth_per_day=growth,
        growth_over_s=over_s,
    )


def sample(store: Store, now: float) -> None:
    """Record the size of the database once an hour, to compute its growth."""

    def write(connection: sqlite3.Connection) -> None:
        newest = connection.execute("SELECT max(time) FROM storage_samples").fetchone()[0]
        if newest is not None and 0 <= now - newest < SAMPLE_EVERY_S:
            return
        pages = pragma(connection, "page_count") - pragma(connection, "freelist_count")
        values = (now, pages * pragma(connection, "page_size"))
        connection.execute("REPLACE INTO storage_samples VALUES (?, ?)", values)
        connection.execute("DELETE FROM storage_samples WHERE time < ? OR time > ?", (now - SAMPLES_KEPT_S, now))

    store.write(write)


def forget_samples(store: Store) -> None:
    """Restart the growth measurement after a deletion; otherwise growth would be negative."""
    store.write(lambda connection: connection.execute("DELETE FROM storage_samples"))


def run_size(connection: sqlite3.Connection, home: Path, run: str, *, proofs_since: float) -> RunSize:
    """Return the size of a run. `proofs_since` as in deletion.refuse_unless_over. Raises ProblemsError: unknown_run,
    run_deleted, run_archived.
    """
    row, kept_by = run_store.run_row(connection, run), None
    try:
        deletion.refuse_unless_over(connection, run, proofs_since=proofs_since)
    except ProblemsError as error:
        kept_by = error.problems[0]
    thinned = connection.execute("SELECT time FROM thinned_runs WHERE run = ?", (run,)).fetchone()
    return RunSize(
        run=run,
        name=row["name"],
        ended=row["ended"],
        kinds=_kinds(connection, home, run),
        is_thinned=thinned is not None and row["ended"] is not None and thinned["time"] > row["ended"],
        kept_by=kept_by,
    )


def _kinds(connection: sqlite3.Connection, home: Path, run: str) -> dict[str, int]:
    sizes = dict.fromkeys(KINDS, 0)
    for table in deletion.run_tables(connection):
        if table == "points":
            of_first, of_all = (
                connection.execute(f"SELECT count(*) FROM points WHERE run = ? {condition}", (run,)).fetchone()[0]  # noqa: S608
                for condition in ("AND rank = 0", "")
            )
            size = POINT_BYTES + 3 * len(run)
            sizes["curves"] += size * of_first
            sizes["other_ranks"] += size * (of_all - of_first)
            continue
        sizes[_KIND_OF_TABLE.get(table, "rest")] += _table_bytes(connection, table, run)
    sizes["flight_records"] = _size_of_folder(flight_records.folder_of(home, run, 0).parent)
    return sizes


def _table_bytes(connection: sqlite3.Connection, table: str, run: str) -> int:
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    texts = " + ".join(
        f"coalesce(length({column['name']}), 0)" for column in columns if column["type"] in ("TEXT", "BLOB")
    )
    count, size = connection.execute(
        f"SELECT count(*), coalesce(sum({texts}), 0) FROM {table} WHERE run = ?",  # noqa: S608
        (run,),
    ).fetchone()
    return int(size) + ROW_BYTES * int(count)


def _growth(connection: sqlite3.Connection, used: int, now: float) -> tuple[float | None, float]:
    first = connection.execute(
        "SELECT time, bytes FROM storage_samples WHERE time >= ? AND time <= ? ORDER BY time LIMIT 1",
        (now - GROWTH_OVER_S - SAMPLE_EVERY_S, now - GROWTH_LEAST_S),
    ).fetchone()
    if first is None:
        return None, 0.0
    over_s = now - first["time"]
    return (used - first["bytes"]) * 86400.0 / over_s, over_s


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return a number that SQLite reports about the file."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _size_of_folder(folder: Path) -> int:
    return sum(_size(Path(directory) / name) for directory, _, names in os.walk(folder) for name in names)
