"""The curves of a run in the store at several widths, so that a chart of a million steps reads a thousand rows.

A cursor marks the newest point of global rank 0 that is in the levels. `add_points` adds stored points after the
cursor, so each point is added exactly once. It adds some dozens of steps at a time, in the transaction that stores the
last of them. Until then, a view reads these few points themselves (curve_view.py). In a database of an older version
the levels are far behind; app/monitor/watch.py then calls `add_points` repeatedly. After a point is added, only full
detail needs its row. Code that drops rows of rank 0 must call `add_all_points` first.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from backend.job.problems import ProblemsError
from backend.runs.store import run_store
from backend.runs.store.curve_buckets import WINDOW, Floats, Steps, from_bytes, join, merge, to_bytes
from backend.runs.store.curve_points import COLUMNS, Points
from backend.runs.view.progress import assumed_tokens

LEVELS = (5, 9, 13)
"""Widths of the buckets, as powers of two."""
POINTS_AT_ONCE = 20_000
"""Points added by one transaction: a tenth of a second."""
WAITING_STEPS = 64
"""Steps that are added together. One at a time costs as much as collecting it."""
LOSSES_KEPT = WINDOW + 2 * WAITING_STEPS
"""Newest finite losses of an attempt. The smoothed loss continues from them."""
LOOK_BACK = 100 * WINDOW
"""Rows that are searched for the losses before a step, for a run that logs every hundredth step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The state of the levels for one attempt."""

    attempt: int
    seq: int
    """Cursor of the newest point taken."""
    generation: int
    """How often it removed steps: its own, or those of an earlier attempt."""
    first_step: int
    last_step: int
    losses: Floats
    """(step, value) of the newest finite losses, oldest first."""

    @property
    def is_empty(self) -> bool:
        """Return whether all its steps were removed."""
        return self.last_step < self.first_step


def add_due_points(connection: sqlite3.Connection, run: str, attempt: int, steps: Sequence[int]) -> None:
    """Add stored steps of rank 0 to the levels, unless they are the next ones and still few."""
    newest = connection.execute(
        "SELECT attempt, first_step, last_step FROM curve_parts WHERE run = ? ORDER BY attempt DESC LIMIT 1", (run,)
    ).fetchone()
    is_next = newest is not None and newest["attempt"] == attempt and min(steps) > newest["last_step"]
    # The first steps of an emptied attempt cut off the steps of earlier attempts, which a view does not see.
    is_next = is_next and newest["first_step"] <= newest["last_step"]
    if not is_next or max(steps) >= newest["last_step"] + WAITING_STEPS:
        add_points(connection, run)


def add_all_points(connection: sqlite3.Connection, run: str) -> None:
    """Add all stored points to the levels."""
    while add_points(connection, run):
        pass


def add_points(connection: sqlite3.Connection, run: str, *, limit: int = POINTS_AT_ONCE) -> bool:
    """Add at most `limit` points that are not in the levels yet; return whether more may be waiting."""
    parts = read_parts(connection, run)
    cursor = connection.cursor()
    cursor.row_factory = None
    rows = cursor.execute(
        f"SELECT attempt, seq, {COLUMNS} FROM points WHERE run = ? AND rank = 0 AND seq > ? ORDER BY seq LIMIT ?",  # noqa: S608
        (run, newest_seq(parts), limit),
    ).fetchall()
    if not rows:
        return False
    for attempt, group in groupby(rows, key=itemgetter(0)):
        new_rows = [*group]
        _add(
            connection, run, parts, attempt, new_rows[-1][1], to_points(connection, run, [row[2:] for row in new_rows])
        )
        if len(new_rows) < len(rows):
            parts = read_parts(connection, run)
    return len(rows) == limit


def remove_steps(connection: sqlite3.Connection, run: str, attempt: int, step: int) -> None:
    """Remove the steps of an attempt from `step` on. The caller has deleted their points."""
    part = next((part for part in read_parts(connection, run) if part.attempt == attempt), None)
    if part is None or part.last_step < step:
        return
    where = (run, attempt)
    begin = max(0, step) >> LEVELS[-1] << LEVELS[-1]
    for bits in LEVELS:
        connection.execute(
            "DELETE FROM curve_levels WHERE run = ? AND attempt = ? AND bits = ? AND bucket >= ?",
            (*where, bits, begin >> bits),
        )
    cursor = connection.cursor()
    cursor.row_factory = None
    rows = cursor.execute(
        f"SELECT {COLUMNS} FROM points WHERE run = ? AND attempt = ? AND rank = 0 AND step >= ? AND seq <= ?"  # noqa: S608
        " ORDER BY step",
        (*where, begin, part.seq),
    ).fetchall()
    if rows:
        points = to_points(connection, run, rows)
        before = _pairs(losses_before(connection, run, attempt, int(points.steps[0])))
        _write(connection, run, attempt, points.buckets(before[:, 1]))
    connection.execute(
        "UPDATE curve_parts SET generation = generation + 1, last_step = ?, losses = ? WHERE run = ? AND attempt = ?",
        (step - 1, _pairs(losses_before(connection, run, attempt, step)).tobytes(), *where),
    )


def to_points(connection: sqlite3.Connection, run: str, rows: Sequence[Sequence[Any]]) -> Points:
    """Return the points of rows of COLUMNS, at least one. The job gives the tokens that the engine does not report."""
    lacks_tokens = any(step_s is not None and tokens is None for _, _, _, _, step_s, tokens, _ in rows)
    return Points.of(rows, assumed_tokens_of(connection, run) if lacks_tokens else None)


def assumed_tokens_of(connection: sqlite3.Connection, run: str) -> int | None:
    """Return the tokens of a step by the job; None also if the job cannot be read. Its points are still added."""
    try:
        return assumed_tokens(run_store.job_of(connection, run))
    except ProblemsError:
        return None


def read_parts(connection: sqlite3.Connection, run: str) -> list[Part]:
    """Return the attempts of a run that are in the levels, oldest first."""
    rows = connection.execute("SELECT * FROM curve_parts WHERE run = ? ORDER BY attempt", (run,))
    return [
        Part(
            attempt=row["attempt"],
            seq=row["seq"],
            generation=row["generation"],
            first_step=row["first_step"],
            last_step=row["last_step"],
            losses=np.frombuffer(row["losses"], "<f8").reshape(-1, 2),
        )
        for row in rows
    ]


def newest_seq(parts: Sequence[Part]) -> int:
    """Return the cursor of the newest point that is in the levels."""
    return max((part.seq for part in parts), default=0)


def read_level(
    connection: sqlite3.Connection, run: str, attempt: int, bits: int, first: int, last: int
) -> tuple[Steps, Floats]:
    """Return the buckets `first` to `last` of one level, and their numbers."""
    rows = connection.execute(
        "SELECT bucket, data FROM curve_levels WHERE run = ? AND attempt = ? AND bits = ? AND bucket BETWEEN ? AND ?"
        " ORDER BY bucket",
        (run, attempt, bits, first, last),
    ).fetchall()
    numbers = np.array([row["bucket"] for row in rows], dtype=np.int64)
    return numbers, from_bytes([row["data"] for row in rows])


def losses_before(connection: sqlite3.Connection, run: str, attempt: int, step: int) -> list[tuple[int, float]]:
    """Return the newest finite losses (step, value) on a run's curve before a step of an attempt, oldest first."""
    losses: list[tuple[int, float]] = []
    for part in reversed(
        [part for part in read_parts(connection, run) if part.attempt <= attempt and not part.is_empty]
    ):
        rows = connection.execute(
            "SELECT step, loss FROM (SELECT step, loss FROM points WHERE run = ? AND attempt = ? AND rank = 0"
            " AND step < ? ORDER BY step DESC LIMIT ?) WHERE abs(loss) < 9e999 AND typeof(loss) != 'text'",
            (run, part.attempt, step, LOOK_BACK),
        ).fetchmany(LOSSES_KEPT - len(losses))
        losses += [(row["step"], float(row["loss"])) for row in rows]
        step = min(step, part.first_step)
        if len(losses) == LOSSES_KEPT:
            break
    return losses[::-1]


def _add(
    connection: sqlite3.Connection, run: str, parts: Sequence[Part], attempt: int, seq: int, points: Points
) -> None:
    part = next((part for part in parts if part.attempt == attempt), None)
    first, last = int(points.steps[0]), int(points.steps[-1])
    newest = parts[-1] if parts else None
    is_back = newest is not None and (newest.is_empty or attempt < newest.attempt or first <= newest.last_step)
    is_next = part is not None and first > part.last_step
    before = part.losses if part and is_next else _pairs(losses_before(connection, run, attempt, first))
    _write(connection, run, attempt, points.buckets(before[:, 1]))
    losses = np.concatenate((before, points.finite_losses()))
    if part and not is_next and last <= part.last_step:
        losses = part.losses
    values = (
        max(seq, part.seq if part else 0),
        (part.generation if part else 0) + (is_back or not points.came_in_order),
        first if part is None or part.is_empty else min(first, part.first_step),
        max(last, part.last_step if part else last),
        losses[-LOSSES_KEPT:].astype("<f8").tobytes(),
    )
    connection.execute("REPLACE INTO curve_parts VALUES (?, ?, ?, ?, ?, ?, ?)", (run, attempt, *values))


def _write(connection: sqlite3.Connection, run: str, attempt: int, new: tuple[Steps, Floats]) -> None:
    """Merge new buckets of one step each into the stored ones."""

    def replace(bits: int, numbers: Sequence[int], buckets: Floats) -> None:
        rows = [(run, attempt, bits, number, to_bytes(bucket)) for number, bucket in zip(numbers, buckets, strict=True)]
        connection.executemany("REPLACE INTO curve_levels VALUES (?, ?, ?, ?, ?)", rows)

    write_levels(new, lambda bits, first, last: read_level(connection, run, attempt, bits, first, last), replace)


def write_levels(
    new: tuple[Steps, Floats],
    read: Callable[[int, int, int], tuple[Steps, Floats]],
    replace: Callable[[int, Sequence[int], Floats], None],
) -> None:
    """Merge new buckets of one step each into the stored ones, level by level.

    `read(bits, first, last)` returns stored buckets and `replace(bits, numbers, buckets)` stores merged ones.
    """
    numbers, buckets = new
    width = 0
    for bits in LEVELS:
        numbers, buckets = join(numbers >> (bits - width), buckets)
        width, merged = bits, buckets
        older, stored = read(bits, int(numbers[0]), int(numbers[-1]))
        if len(older):
            indices = np.searchsorted(numbers, older)
            is_ours = numbers[indices] == older
            indices = indices[is_ours]
            merged = buckets.copy()
            merged[indices] = merge(stored[is_ours], buckets[indices])
        replace(bits, numbers.tolist(), merged)


def _pairs(losses: Sequence[tuple[int, float]]) -> Floats:
    return np.array(losses, dtype="<f8").reshape(-1, 2)
