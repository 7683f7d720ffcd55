"""Drops rows of ended runs that no part of the program reads any more.

The page, the diagnosis and the calibration do not change. It drops:
- all points of ranks other than 0, except the newest
- the logs of ranks that are not the first of their node, except the end
- all heartbeats of a node, except the newest

It keeps the curves (rank 0), the usage of each node over time (utilization.py), the events, and the logs of each node's
first rank. It does not touch files on the nodes.
"""

import re
import sqlite3
from collections.abc import Iterator

from backend.runs.store import run_store
from backend.runs.store.deletion import BLOB_ROWS, ROWS
from backend.runs.store.store import Store
from backend.runs.supervise.reaper import unproved_nodes

LOG_END_BYTES = 64 << 10
"""Kept bytes of each log: the page shows them first, and the diagnosis reads them."""
_RANK_LOG = re.compile(r"rank(\d+)\.log")


def due(connection: sqlite3.Connection, ended_before: float) -> list[str]:
    """Return the runs that ended before that time, with proofs of all nodes, and that still have raw rows."""
    rows = connection.execute(
        "SELECT r.id FROM runs r LEFT JOIN thinned_runs t ON t.run = r.id"
        " WHERE r.ended < ? AND coalesce(t.time <= r.ended, 1) ORDER BY r.ended",
        (ended_before,),
    ).fetchall()
    unproved = {node.run for node in unproved_nodes(connection, 0.0)} if rows else set()
    return [row["id"] for row in rows if row["id"] not in unproved]


def thin(store: Store, run: str, *, now: float) -> int:
    """Drop the raw rows of a run, a few at a time, and record it; return their number. A resumed run is not changed."""
    total = 0
    while dropped := store.write(lambda connection: _drop_some(connection, run)):
        total += dropped
    store.write(lambda connection: _record_thinned(connection, run, now))
    return total


def _drop_some(connection: sqlite3.Connection, run: str) -> int:
    if not _is_over(connection, run):
        return 0
    return _drop_points(connection, run) or _drop_heartbeats(connection, run) or _drop_logs(connection, run)


def _record_thinned(connection: sqlite3.Connection, run: str, now: float) -> None:
    if _is_over(connection, run):
        connection.execute("REPLACE INTO thinned_runs VALUES (?, ?)", (run, now))


def _is_over(connection: sqlite3.Connection, run: str) -> bool:
    """Return whether the run still exists and was not resumed since the check."""
    row = connection.execute("SELECT ended FROM runs WHERE id = ?", (run,)).fetchone()
    state = run_store.state_of(connection, run) if row else None
    return row is not None and row["ended"] is not None and state is not None and state.is_final


def _drop_points(connection: sqlite3.Connection, run: str) -> int:
    dropped = 0
    for attempt, rank in _ranks(connection, run):
        where = (run, attempt, rank)
        dropped += connection.execute(
            "DELETE FROM points WHERE seq IN (SELECT seq FROM points WHERE run = ? AND attempt = ? AND rank = ?"
            " AND step < (SELECT max(step) FROM points WHERE run = ? AND attempt = ? AND rank = ?) LIMIT ?)",
            (*where, *where, ROWS - dropped),
        ).rowcount
        if dropped >= ROWS:
            break
    return dropped


def _ranks(connection: sqlite3.Connection, run: str) -> Iterator[tuple[int, int]]:
    """Return (attempt, global rank) of all points except those of rank 0, with one seek each."""
    attempts = [row[0] for row in connection.execute("SELECT attempt FROM attempts WHERE run = ?", (run,))]
    for attempt in attempts:
        rank = 0
        query = "SELECT min(rank) FROM points WHERE run = ? AND attempt = ? AND rank > ?"
        while (rank := connection.execute(query, (run, attempt, rank)).fetchone()[0]) is not None:
            yield attempt, rank


def _drop_heartbeats(connection: sqlite3.Connection, run: str) -> int:
    return connection.execute(
        "DELETE FROM heartbeats WHERE (run, attempt, rank, time) IN (SELECT run, attempt, rank, time FROM heartbeats h"
        " WHERE run = ? AND time < (SELECT max(time) FROM heartbeats n WHERE n.run = h.run AND n.attempt = h.attempt"
        " AND n.rank = h.rank) LIMIT ?)",
        (run, ROWS),
    ).rowcount


def _drop_logs(connection: sqlite3.Connection, run: str) -> int:
    dropped = 0
    for attempt, node, file in _other_logs(connection, run):
        where = (run, attempt, node, file)
        newest = connection.execute(
            "SELECT generation, offset + length(data) AS size FROM log_chunks"
            " WHERE run = ? AND attempt = ? AND rank = ? AND file = ? ORDER BY generation DESC, offset DESC LIMIT 1",
            where,
        ).fetchone()
        dropped += connection.execute(
            "DELETE FROM log_chunks WHERE rowid IN (SELECT rowid FROM log_chunks"
            " WHERE run = ? AND attempt = ? AND rank = ? AND file = ?"
            " AND (generation < ? OR offset + length(data) <= ?) LIMIT ?)",
            (*where, newest["generation"], newest["size"] - LOG_END_BYTES, BLOB_ROWS - dropped),
        ).rowcount
        if dropped >= BLOB_ROWS:
            break
    return dropped


def _other_logs(connection: sqlite3.Connection, run: str) -> Iterator[tuple[int, int, str]]:
    """Return (attempt, node, file) of the logs of ranks that are not their node's first."""
    rows = connection.execute("SELECT DISTINCT attempt, rank, file FROM log_chunks WHERE run = ?", (run,)).fetchall()
    ranks = {
        (row["attempt"], row["rank"], row["file"]): int(match[1])
        for row in rows
        if (match := _RANK_LOG.fullmatch(row["file"]))
    }
    first: dict[tuple[int, int], int] = {}
    for (attempt, node, _), rank in ranks.items():
        first[attempt, node] = min(rank, first.get((attempt, node), rank))
    return (log for log, rank in ranks.items() if rank != first[log[:2]])
