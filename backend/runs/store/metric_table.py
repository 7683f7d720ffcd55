"""All numbers of a run as one table: a row for each step of each attempt, a column for each name."""

import heapq
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from backend.runs.store import logged_metrics, run_store

FIXED = ("attempt", "step", "time")
POINTS = ("epoch", "tokens", "step_s", "loss", "grad_norm", "learning_rate")
"""Columns of the table `points` that every run has."""
Row = list[Any]


def columns(connection: sqlite3.Connection, run: str) -> list[str]:
    """Return the names of the columns. Raises ProblemsError(unknown_run)."""
    run_store.run_row(connection, run)
    logged = {row.name for row in logged_metrics.series_rows(connection, run)}
    return [*FIXED, *POINTS, *sorted(logged - {*FIXED, *POINTS})]


def rows(connection: sqlite3.Connection, run: str, names: Sequence[str]) -> Iterator[Row]:
    """Return the rows of rank 0 by attempt and step, with the columns `names`; None where a step has no value.

    The time is in epoch seconds of the node's clock. It reads the rows one by one: a run may have millions.
    """
    attempts = connection.execute("SELECT attempt FROM attempts WHERE run = ? ORDER BY attempt", (run,)).fetchall()
    places = {name: position for position, name in enumerate(names)}
    for (attempt,) in (tuple(row) for row in attempts):
        values = heapq.merge(
            _points(connection, run, attempt),
            *(_metric(connection, run, attempt, name) for name in names if name not in (*FIXED, *POINTS)),
            key=itemgetter(0),
        )
        for step, of_step in groupby(values, key=itemgetter(0)):
            row: Row = [None] * len(names)
            row[0], row[1] = attempt, step
            for _, time, known in of_step:
                row[2] = time if row[2] is None else row[2]
                for name, value in known.items():
                    if value is not None and name in places:
                        row[places[name]] = value
            yield row


def _points(connection: sqlite3.Connection, run: str, attempt: int) -> Iterator[tuple[int, float, dict[str, Any]]]:
    cursor = connection.execute(
        f"SELECT step, time, {', '.join(POINTS)} FROM points WHERE run = ? AND attempt = ? AND rank = 0 ORDER BY step",  # noqa: S608
        (run, attempt),
    )
    for row in cursor:
        yield row["step"], row["time"], {name: row[name] for name in POINTS}


def _metric(
    connection: sqlite3.Connection, run: str, attempt: int, name: str
) -> Iterator[tuple[int, float, dict[str, Any]]]:
    cursor = connection.execute(
        "SELECT step, time, value FROM metrics WHERE run = ? AND attempt = ? AND rank = 0 AND name = ? ORDER BY step",
        (run, attempt, name),
    )
    for row in cursor:
        yield row["step"], row["time"], {name: row["value"]}
