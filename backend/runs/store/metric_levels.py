"""The values of logged metrics at several widths, so that a chart of a million values reads a thousand rows.

Buckets are those of curve_buckets.py with one series. Some dozens of values are added together; until then, a view
reads these values themselves (metric_view.py).
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend.runs.store.curve_buckets import Floats, Steps, from_bytes, of_points, to_bytes
from backend.runs.store.curve_levels import LEVELS, write_levels

WAITING = 64
"""Values of a name that are added together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One name of one rank in one attempt."""

    run: str
    attempt: int
    rank: int
    name: str

    @property
    def values(self) -> tuple[str, int, int, str]:
        """Return the values for `condition`."""
        return (self.run, self.attempt, self.rank, self.name)

    @property
    def condition(self) -> str:
        """Return the SQL condition for the rows of this key."""
        return "run = ? AND attempt = ? AND rank = ? AND name = ?"


def write(connection: sqlite3.Connection, key: Key, steps: Steps, values: Floats) -> None:
    """Add values to the levels, each once, by ascending steps. Values that are not finite are left out."""
    is_finite = np.isfinite(values)
    if not is_finite.any():
        return
    steps, values = steps[is_finite], values[is_finite]

    def replace(bits: int, numbers: Sequence[int], buckets: Floats) -> None:
        rows = [(*key.values, bits, number, to_bytes(bucket)) for number, bucket in zip(numbers, buckets, strict=True)]
        connection.executemany("REPLACE INTO metric_levels VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    read_one = lambda bits, first, last: read(connection, key, bits, first, last)  # noqa: E731
    write_levels((steps, of_points(steps, values[:, None])), read_one, replace)


def write_waiting(connection: sqlite3.Connection, key: Key, after: int) -> int:
    """Add all stored values after a step to the levels; return the last step."""
    steps, values = read_values(connection, key, after + 1)
    write(connection, key, steps, values)
    return int(steps[-1])


def read_values(
    connection: sqlite3.Connection, key: Key, first: int, last: int = (1 << 53) - 1
) -> tuple[Steps, Floats]:
    """Return the stored values from one step to another, also those that are not finite."""
    cursor = connection.cursor()
    cursor.row_factory = None
    rows = cursor.execute(
        f"SELECT step, value FROM metrics WHERE {key.condition} AND step BETWEEN ? AND ? ORDER BY step",  # noqa: S608
        (*key.values, first, last),
    ).fetchall()
    steps = np.array([row[0] for row in rows], dtype=np.int64)
    return steps, np.array([float(row[1]) for row in rows])


def read(connection: sqlite3.Connection, key: Key, bits: int, first: int, last: int) -> tuple[Steps, Floats]:
    """Return the buckets `first` to `last` of one level, and their numbers."""
    rows = connection.execute(
        f"SELECT bucket, points FROM metric_levels WHERE {key.condition} AND bits = ? AND bucket BETWEEN ? AND ?"  # noqa: S608
        " ORDER BY bucket",
        (*key.values, bits, first, last),
    ).fetchall()
    numbers = np.array([row["bucket"] for row in rows], dtype=np.int64)
    return numbers, from_bytes([row["points"] for row in rows], 1)


def remove(connection: sqlite3.Connection, key: Key, step: int) -> int:
    """Remove the buckets with `step` and later steps; return the last step that is still in the levels."""
    begin = max(0, step) >> LEVELS[-1] << LEVELS[-1]
    for bits in LEVELS:
        connection.execute(
            f"DELETE FROM metric_levels WHERE {key.condition} AND bits = ? AND bucket >= ?",  # noqa: S608
            (*key.values, bits, begin >> bits),
        )
    return begin - 1
