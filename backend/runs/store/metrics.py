"""Metric storage: points, heartbeats, log bytes, and the offset up to which each file was read.

The transaction that stores a batch also moves the file's offset by compare-and-set. So every byte is stored exactly
once, even with several collectors and after a kill.
"""

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.runs.collect.node_records import Beat, GpuOfBeat, Gpus, Heartbeat, stored
from backend.runs.records import Point
from backend.runs.store import attempts, curve_levels, utilization

HEARTBEATS_KEPT_S = 120.0
"""Age at which heartbeats are deleted: twice what straggler.py reads. utilization.py condenses all of them."""
STEPS_KEPT = 500
"""Newest steps that are kept of each rank except 0.

Only the newest one of these ranks is read, and with hundreds of ranks their rows are nearly all of the data. The file
on the node is complete.
"""
_DROPPED_AT_ONCE = 2000
"""Rows of a rank that one batch may drop. A store of an older version holds millions."""
LOG_BYTES_KEPT = 16 << 20
"""Newest bytes of each log file that stay in the store. The file on the node is complete."""

_NUMBERS = ("step_s", "loss", "grad_norm", "learning_rate", "epoch", "allocated_gib", "reserved_gib")
_COUNTS = ("total_steps", "tokens", "log_offset")
_COLUMNS = ("run", "attempt", "rank", "step", "time", *_COUNTS, *_NUMBERS)


class OffsetConflict(Exception):
    """Another collector was faster. Read the offsets again, then the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileOffset:
    """How far a file has been read. `tail` identifies the last bytes read, to detect a rewritten file."""

    generation: int = 0
    """Grows when the file was truncated or replaced, so that offsets start again at 0, and when a part was left out."""
    offset: int = 0
    tail: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileKey:
    """A file of one node of one attempt."""

    run: str
    attempt: int
    rank: int
    file: str


def offsets(connection: sqlite3.Connection, run: str, attempt: int, rank: int) -> dict[str, FileOffset]:
    """Return the offset of each file of a node."""
    rows = connection.execute("SELECT * FROM offsets WHERE run = ? AND attempt = ? AND rank = ?", (run, attempt, rank))
    return {
        row["file"]: FileOffset(generation=row["generation"], offset=row["offset"], tail=row["tail"]) for row in rows
    }


def advance(connection: sqlite3.Connection, key: FileKey, before: FileOffset, after: FileOffset) -> None:
    """Move the offset of a file from `before` to `after`. OffsetConflict when it is not at `before` any more."""
    where = (key.run, key.attempt, key.rank, key.file)
    moved = connection.execute(
        "UPDATE offsets SET generation = ?, offset = ?, tail = ? WHERE run = ? AND attempt = ? AND rank = ?"
        " AND file = ? AND generation = ? AND offset = ?",
        (after.generation, after.offset, after.tail, *where, before.generation, before.offset),
    )
    if moved.rowcount == 0 and before == FileOffset():  # the first read of the file
        moved = connection.execute(
            "INSERT OR IGNORE INTO offsets VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*where, after.generation, after.offset, after.tail),
        )
    if moved.rowcount != 1:
        raise OffsetConflict(f"{key.run} node {key.rank} {key.file}")


def add_points(
    connection: sqlite3.Connection, run: str, attempt: int, rank: int, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Store step rows of one global rank; a stored step stays. For ranks other than 0, only the newest are kept."""
    marks = ", ".join("?" for _ in _COLUMNS)
    connection.executemany(
        f"INSERT INTO points ({', '.join(_COLUMNS)}) VALUES ({marks}) ON CONFLICT DO NOTHING",  # noqa: S608
        [(run, attempt, rank, row["step"], row["time"], *map(row.get, _COUNTS), *_number_columns(row)) for row in rows],
    )
    if rank == 0 and rows:
        curve_levels.add_due_points(connection, run, attempt, [row["step"] for row in rows])
    if rank and rows:
        where = (run, attempt, rank)
        connection.execute(
            "DELETE FROM points WHERE seq IN (SELECT seq FROM points WHERE run = ? AND attempt = ? AND rank = ?"
            " AND step <= (SELECT max(step) FROM points WHERE run = ? AND attempt = ? AND rank = ?) - ? LIMIT ?)",
            (*where, *where, STEPS_KEPT, _DROPPED_AT_ONCE),
        )


def remove_steps(connection: sqlite3.Connection, run: str, attempt: int, rank: int, step: int) -> None:
    """Delete the steps of a global rank from `step` on; the rank reports them again."""
    where = (run, attempt, rank, step)
    if rank == 0:
        curve_levels.add_all_points(connection, run)
    connection.execute("DELETE FROM points WHERE run = ? AND attempt = ? AND rank = ? AND step >= ?", where)
    if rank == 0:
        curve_levels.remove_steps(connection, run, attempt, step)


def points(connection: sqlite3.Connection, run: str, *, rank: int | None = 0, after: int = 0) -> list[Point]:
    """Return the points of one global rank (None: of all) after a cursor, in the order of arrival."""
    condition, values = ("", ()) if rank is None else ("AND rank = ?", (rank,))
    rows = connection.execute(
        f"SELECT * FROM points WHERE run = ? {condition} AND seq > ? ORDER BY seq",  # noqa: S608
        (run, *values, after),
    )
    return [_point(row) for row in rows]


def newest_points(connection: sqlite3.Connection, run: str, attempt: int, *, count: int) -> list[Point]:
    """Return the newest points of global rank 0, oldest first."""
    rows = connection.execute(
        "SELECT * FROM points WHERE run = ? AND attempt = ? AND rank = 0 ORDER BY step DESC LIMIT ?",
        (run, attempt, count),
    ).fetchall()
    return [_point(row) for row in reversed(rows)]


def first_step(connection: sqlite3.Connection, run: str, attempt: int, rank: int) -> int | None:
    """Return the first stored step of a global rank in an attempt; None before it."""
    row = connection.execute(
        "SELECT min(step) AS step FROM points WHERE run = ? AND attempt = ? AND rank = ?", (run, attempt, rank)
    ).fetchone()
    return None if row["step"] is None else int(row["step"])


def first_points(connection: sqlite3.Connection, run: str, attempt: int, *, count: int) -> list[Point]:
    """Return the first points of global rank 0 in an attempt, oldest first."""
    rows = connection.execute(
        "SELECT * FROM points WHERE run = ? AND attempt = ? AND rank = 0 ORDER BY step LIMIT ?", (run, attempt, count)
    )
    return [_point(row) for row in rows]


def trail(connection: sqlite3.Connection, run: str, attempt: int, *, count: int) -> list[Point]:
    """Return the newest points of global rank 0 that count, oldest first.

    An attempt replaces all steps after the checkpoint from which it resumed, whether it trained them again or not.
    """
    newest: list[Point] = []
    last: int | None = None
    while attempt > 0 and len(newest) < count:
        rows = connection.execute(
            "SELECT * FROM points WHERE run = ? AND attempt = ? AND rank = 0 AND step <= coalesce(?, step)"
            " ORDER BY step DESC LIMIT ?",
            (run, attempt, last, count - len(newest)),
        ).fetchall()
        newest = [_point(row) for row in reversed(rows)] + newest
        resumed_at = attempts.checkpoint_step(connection, run, attempt)
        if resumed_at is None:
            break
        last = resumed_at if last is None else min(last, resumed_at)
        attempt -= 1
    return newest


def log_place(connection: sqlite3.Connection, run: str, step: int) -> tuple[int, int] | None:
    """Return (attempt, offset in the log of rank 0) of the newest point at a step or shortly before it."""
    for attempt in range(attempts.newest(connection, run), 0, -1):
        row = connection.execute(
            "SELECT log_offset FROM points WHERE run = ? AND attempt = ? AND rank = 0 AND step <= ?"
            " ORDER BY step DESC LIMIT 1",
            (run, attempt, step),
        ).fetchone()
        if row is not None:
            return None if row["log_offset"] is None else (attempt, row["log_offset"])
    return None


def step_times(connection: sqlite3.Connection, run: str, attempt: int, *, count: int) -> list[tuple[int, float]]:
    """Return (step, seconds) of the newest steps of global rank 0 in an attempt, oldest first."""
    rows = connection.execute(
        "SELECT step, step_s FROM points WHERE run = ? AND attempt = ? AND rank = 0 AND step_s > 0"
        " ORDER BY step DESC LIMIT ?",
        (run, attempt, count),
    ).fetchall()
    return [(row["step"], row["step_s"]) for row in reversed(rows)]


def newest_of_ranks(connection: sqlite3.Connection, run: str, attempt: int, *, ranks: int) -> list[Point]:
    """Return the newest point of each global rank below `ranks` that has one."""
    rows = (
        connection.execute(
            "SELECT * FROM points WHERE run = ? AND attempt = ? AND rank = ? ORDER BY step DESC LIMIT 1",
            (run, attempt, rank),
        ).fetchone()
        for rank in range(ranks)
    )
    return [_point(row) for row in rows if row is not None]


def newest_logged(connection: sqlite3.Connection, run: str, attempt: int, name: str, *, count: int) -> list[float]:
    """Return the newest finite values of the field `name` that global rank 0 logged in an attempt, oldest first."""
    if name not in _NUMBERS:
        raise ValueError(name)
    rows = connection.execute(
        f"SELECT {name} AS value FROM points WHERE run = ? AND attempt = ? AND rank = 0 AND {name} IS NOT NULL"  # noqa: S608
        " ORDER BY step DESC LIMIT ?",
        (run, attempt, count),
    )
    return [value for row in reversed(rows.fetchall()) if math.isfinite(value := float(row["value"]))]


def newest_steps_of(
    connection: sqlite3.Connection, run: str, attempt: int, name: str, *, count: int
) -> list[tuple[int, float]]:
    """Return (step, value) of the newest values of the field `name` of global rank 0 in an attempt, oldest first."""
    if name not in _NUMBERS:
        raise ValueError(name)
    rows = connection.execute(
        f"SELECT step, {name} AS value FROM points WHERE run = ? AND attempt = ? AND rank = 0 AND {name} IS NOT NULL"  # noqa: S608
        " ORDER BY step DESC LIMIT ?",
        (run, attempt, count),
    ).fetchall()
    return [(row["step"], float(row["value"])) for row in reversed(rows)]


def newest_loss(connection: sqlite3.Connection, run: str) -> float | None:
    """Return the newest loss that global rank 0 logged, also NaN and infinity; None before the first."""
    row = connection.execute(
        "SELECT loss FROM points WHERE run = ? AND rank = 0 AND loss IS NOT NULL ORDER BY seq DESC LIMIT 1", (run,)
    ).fetchone()
    return None if row is None else float(row["loss"])


def add_heartbeats(
    connection: sqlite3.Connection,
    run: str,
    attempt: int,
    rank: int,
    rows: Sequence[Heartbeat],
    received: float,
) -> None:
    """Store heartbeats of a node in the order of writing, and drop those that are too old."""
    # If the clock of the node was set back, heartbeats with a later time are older.
    newest_time = max((row["time"] for row in rows[-1:]), default=math.inf)
    connection.execute(
        "DELETE FROM heartbeats WHERE run = ? AND attempt = ? AND rank = ? AND time > ?",
        (run, attempt, rank, newest_time),
    )
    connection.executemany(
        "INSERT INTO heartbeats VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [(run, attempt, rank, row["time"], received, json.dumps(row)) for row in rows],
    )
    connection.execute(
        "DELETE FROM heartbeats WHERE run = ? AND attempt = ? AND rank = ? AND received < ?",
        (run, attempt, rank, received - HEARTBEATS_KEPT_S),
    )
    offset_s = connection.execute(
        "SELECT clock_offset_s FROM nodes WHERE run = ? AND attempt = ? AND rank = ?", (run, attempt, rank)
    ).fetchone()[0]
    utilization.add(connection, run, rank, rows, offset_s=offset_s, received=received)


def newest_heartbeats(connection: sqlite3.Connection, run: str, attempt: int) -> dict[int, tuple[float, Beat]]:
    """Return node rank -> (time of arrival, content) of the newest readable heartbeat."""
    nodes = connection.execute("SELECT rank FROM nodes WHERE run = ? AND attempt = ?", (run, attempt)).fetchall()
    # One seek per node: a query grouped by rank would read all stored heartbeats.
    rows = (
        connection.execute(
            "SELECT rank, received, data FROM heartbeats WHERE run = ? AND attempt = ? AND rank = ?"
            " ORDER BY time DESC LIMIT 1",
            (run, attempt, node["rank"]),
        ).fetchone()
        for node in nodes
    )
    beats = ((row, stored(Beat, row["data"])) for row in rows if row is not None)
    return {row["rank"]: (row["received"], beat) for row, beat in beats if beat is not None}


def recent_gpus(
    connection: sqlite3.Connection, run: str, attempt: int, rank: int, *, since: float
) -> list[list[GpuOfBeat]]:
    """Return the GPUs of a node in each heartbeat that arrived at `since` or later."""
    rows = connection.execute(
        "SELECT data FROM heartbeats WHERE run = ? AND attempt = ? AND rank = ? AND received >= ?",
        (run, attempt, rank, since),
    )
    return [gpus for row in rows if (gpus := (stored(Gpus, row["data"]) or {}).get("gpus"))]


def add_log(connection: sqlite3.Connection, key: FileKey, start: FileOffset, data: bytes) -> None:
    """Store the bytes of a log that begin at `start`; drop the oldest beyond LOG_BYTES_KEPT."""
    where = (key.run, key.attempt, key.rank, key.file)
    connection.execute(
        "INSERT INTO log_chunks VALUES (?, ?, ?, ?, ?, ?, ?)", (*where, start.generation, start.offset, data)
    )
    connection.execute(
        "DELETE FROM log_chunks WHERE run = ? AND attempt = ? AND rank = ? AND file = ?"
        " AND (generation < ? OR offset < ?)",
        (*where, start.generation - 1, start.offset - LOG_BYTES_KEPT),
    )


def log_files(connection: sqlite3.Connection, run: str, attempt: int, rank: int) -> list[str]:
    """Return the names of the logs of a node with stored bytes."""
    # One seek per name: DISTINCT would read the index of all chunks, a hundred thousand for a long run.
    rows = connection.execute(
        "WITH RECURSIVE names (file) AS ("
        " SELECT min(file) FROM log_chunks WHERE run = :run AND attempt = :attempt AND rank = :rank UNION ALL"
        " SELECT (SELECT min(file) FROM log_chunks WHERE run = :run AND attempt = :attempt AND rank = :rank"
        " AND file > names.file) FROM names WHERE names.file IS NOT NULL)"
        " SELECT file FROM names WHERE file IS NOT NULL",
        {"run": run, "attempt": attempt, "rank": rank},
    )
    return [row["file"] for row in rows]


def log_end(connection: sqlite3.Connection, key: FileKey) -> int:
    """Return the offset after the newest byte of a log; 0 without a log."""
    row = connection.execute(
        "SELECT offset + length(data) FROM log_chunks WHERE run = ? AND attempt = ? AND rank = ? AND file = ?"
        " ORDER BY generation DESC, offset DESC LIMIT 1",
        (key.run, key.attempt, key.rank, key.file),
    ).fetchone()
    return 0 if row is None else int(row[0])


def log_tail(
    connection: sqlite3.Connection, key: FileKey, *, size: int, before: int | None = None
) -> tuple[int, bytes]:
    """Return (offset, bytes) of the newest `size` bytes of a log, or of those that end before an offset."""
    where = (key.run, key.attempt, key.rank, key.file)
    rows = connection.execute(
        "SELECT generation, offset, data FROM log_chunks WHERE run = ? AND attempt = ? AND rank = ? AND file = ?"
        " AND offset < ? ORDER BY generation DESC, offset DESC",
        (*where, before if before is not None else 1 << 62),
    )
    pieces: list[bytes] = []
    start, total, generation = 0, 0, None
    for row in rows:
        if generation not in (None, row["generation"]) or total >= size:
            break
        generation, start = row["generation"], row["offset"]
        data = row["data"] if before is None else row["data"][: max(0, before - start)]
        pieces.insert(0, data)
        total += len(data)
    whole = b"".join(pieces)
    cut = max(0, len(whole) - size)
    return start + cut, whole[cut:]


def _number_columns(row: Mapping[str, Any]) -> Iterator[float | str | None]:
    # SQLite stores NaN as NULL, which would hide the step that went wrong. Text keeps it.
    for key in _NUMBERS:
        value = row.get(key)
        yield "nan" if value is not None and math.isnan(value) else value


def _point(row: sqlite3.Row) -> Point:
    values: dict[str, Any] = {key: row[key] for key in ("seq", "attempt", "rank", "step", "time", *_COUNTS)}
    for key in _NUMBERS:
        values[key] = None if row[key] is None else float(row[key])
    return Point(**values)
