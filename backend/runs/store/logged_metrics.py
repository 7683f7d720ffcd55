"""Every number that a training logs under a name, as rows (run, attempt, rank, name, step, time, value).

`metric_series` has one row for each name of an attempt: how many values it has, and the first, last, lowest and highest
of them. So lists and alerts read no values. metric_levels.py condenses the values for charts; metric_view.py reads
them.
"""

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backend.runs.store import metric_levels
from backend.runs.store.metric_levels import Key

MOST_NAMES = 500
"""Names that a run may log. Further names are not stored."""
Value = tuple[float, float]
"""Time and value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesRow:
    """The state of one name in one attempt, as the table metric_series has it."""

    attempt: int
    name: str
    count: int = 0
    generation: int = 0
    """How often values were removed, or came with an earlier step than a stored one."""
    first_step: int = 0
    last_step: int = -1
    last: float = math.nan
    """The value at the last step. May be NaN or infinite."""
    lowest: float | None = None
    """Of the finite values; None without one."""
    lowest_step: int | None = None
    highest: float | None = None
    highest_step: int | None = None
    waiting: int = 0
    """Values that are not in the levels yet."""
    levels_step: int = -1
    """The levels have all values up to this step."""


def add(
    connection: sqlite3.Connection, run: str, attempt: int, rank: int, rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Store the `metrics` of step records; a stored value stays. Return the names that the run has no room for."""
    values: dict[str, dict[int, Value]] = {}
    for row in rows:
        for name, value in row.get("metrics", {}).items():
            values.setdefault(name, {}).setdefault(row["step"], (row["time"], value))
    if not values:
        return []
    known = {row.name: row for row in series_rows(connection, run, rank=rank, attempt=attempt)}
    left_out = _without_room(connection, run, [name for name in values if name not in known])
    for name, by_step in values.items():
        if name not in left_out:
            series = known.get(name) or SeriesRow(attempt=attempt, name=name)
            _add_values(connection, Key(run=run, attempt=attempt, rank=rank, name=name), series, by_step)
    return left_out


def remove_steps(connection: sqlite3.Connection, run: str, attempt: int, rank: int, step: int) -> None:
    """Delete the values of a rank from `step` on; the training reports them again."""
    for series in series_rows(connection, run, rank=rank, attempt=attempt):
        if series.last_step < step:
            continue
        key = Key(run=run, attempt=attempt, rank=rank, name=series.name)
        connection.execute(f"DELETE FROM metrics WHERE {key.condition} AND step >= ?", (*key.values, step))  # noqa: S608
        levels_step = min(series.levels_step, metric_levels.remove(connection, key, step))
        rows = connection.execute(
            f"SELECT step, value FROM metrics WHERE {key.condition} ORDER BY step",  # noqa: S608
            key.values,
        ).fetchall()
        if not rows:
            connection.execute(f"DELETE FROM metric_series WHERE {key.condition}", key.values)  # noqa: S608
            continue
        emptied = SeriesRow(
            attempt=attempt, name=series.name, generation=series.generation + 1, levels_step=levels_step
        )
        steps = [row["step"] for row in rows]
        waiting = sum(step > levels_step for step in steps)
        _write_series(connection, key, emptied, steps, [float(row["value"]) for row in rows], waiting, levels_step)


def series_rows(
    connection: sqlite3.Connection, run: str, *, rank: int = 0, attempt: int | None = None
) -> list[SeriesRow]:
    """Return the names of a rank in each attempt, oldest attempt first."""
    condition, values = ("", ()) if attempt is None else ("AND attempt = ?", (attempt,))
    rows = connection.execute(
        f"SELECT * FROM metric_series WHERE run = ? AND rank = ? {condition} ORDER BY attempt, name",  # noqa: S608
        (run, rank, *values),
    )
    columns = SeriesRow.__dataclass_fields__
    return [SeriesRow(**{**{name: row[name] for name in columns}, "last": float(row["last"])}) for row in rows]


def names(connection: sqlite3.Connection) -> list[str]:
    """Return the names that any run has logged, in order."""
    return [row["name"] for row in connection.execute("SELECT DISTINCT name FROM metric_series ORDER BY name")]


def runs_with(connection: sqlite3.Connection, name: str) -> list[str]:
    """Return the runs whose rank 0 has logged a metric."""
    rows = connection.execute(
        "SELECT DISTINCT run FROM metric_series WHERE rank = 0 AND name = ? ORDER BY run", (name,)
    )
    return [row["run"] for row in rows]


def newest(connection: sqlite3.Connection, run: str, attempt: int, name: str, *, count: int) -> list[tuple[int, float]]:
    """Return (step, value) of the newest values of rank 0 in an attempt, oldest first."""
    rows = connection.execute(
        "SELECT step, value FROM metrics WHERE run = ? AND attempt = ? AND rank = 0 AND name = ?"
        " ORDER BY step DESC LIMIT ?",
        (run, attempt, name, count),
    ).fetchall()
    return [(row["step"], float(row["value"])) for row in reversed(rows)]


def _without_room(connection: sqlite3.Connection, run: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    stored = {
        row["name"] for row in connection.execute("SELECT DISTINCT name FROM metric_series WHERE run = ?", (run,))
    }
    others = [name for name in names if name not in stored]
    return others[max(0, MOST_NAMES - len(stored)) :]


def _add_values(connection: sqlite3.Connection, key: Key, series: SeriesRow, by_step: Mapping[int, Value]) -> None:
    steps = sorted(by_step)
    if steps[0] <= series.last_step:
        stored = connection.execute(
            f"SELECT step FROM metrics WHERE {key.condition} AND step BETWEEN ? AND ?",  # noqa: S608
            (*key.values, steps[0], steps[-1]),
        )
        steps = sorted(set(steps) - {row["step"] for row in stored})
        if not steps:
            return
    connection.executemany(
        "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(*key.values, step, by_step[step][0], _stored(by_step[step][1])) for step in steps],
    )
    values = [by_step[step][1] for step in steps]
    late = sum(step <= series.levels_step for step in steps)
    metric_levels.write(connection, key, np.array(steps[:late], dtype=np.int64), np.array(values[:late]))
    waiting, levels_step = series.waiting + len(steps) - late, series.levels_step
    if waiting >= metric_levels.WAITING:
        levels_step = metric_levels.write_waiting(connection, key, levels_step)
        waiting = 0
    _write_series(connection, key, series, steps, values, waiting, levels_step)


def _write_series(
    connection: sqlite3.Connection,
    key: Key,
    series: SeriesRow,
    steps: Sequence[int],
    values: Sequence[float],
    waiting: int,
    levels_step: int,
) -> None:
    """Add new values to the summary of a series."""
    finite = [(value, step) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    lows = [*finite, *([(series.lowest, series.lowest_step)] if series.lowest is not None else [])]
    highs = [*finite, *([(series.highest, series.highest_step)] if series.highest is not None else [])]
    lowest = min(lows, key=lambda low: (low[0], low[1]), default=(None, None))
    highest = max(highs, key=lambda high: (high[0], -(high[1] or 0)), default=(None, None))
    is_newer = steps[-1] > series.last_step
    summary = (
        series.count + len(steps),
        series.generation + (series.count > 0 and steps[0] < series.last_step),
        min(steps[0], series.first_step) if series.count else steps[0],
        max(steps[-1], series.last_step),
        _stored(values[-1] if is_newer else series.last),
    )
    connection.execute(
        "REPLACE INTO metric_series VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*key.values, *summary, *lowest, *highest, waiting, levels_step),
    )


def _stored(value: float) -> float | str:
    # SQLite stores NaN as NULL. Text keeps it.
    return "nan" if math.isnan(value) else float(value)
