"""Attempts of runs and their nodes in the store: functions on a connection, as in run_store.py."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from backend.runs.collect.node_records import Exit, Stopped, stored, stored_exit
from backend.runs.records import NodeRecord

_NODE_COLUMNS = ("rank", "address", "folder", "python", "setup", "mark", "clock_offset_s")


def create(
    connection: sqlite3.Connection,
    run: str,
    attempt: int,
    *,
    master: tuple[str, int],
    rendered: Mapping[str, Any],
    nodes: Iterable[NodeRecord],
    time: float,
    checkpoint_step: int | None = None,
) -> None:
    """Record what an attempt is going to start, before it starts; `checkpoint_step`: where it goes on from."""
    columns = "(run, attempt, created, master_address, master_port, rendered, checkpoint_step)"
    values = (run, attempt, time, *master, json.dumps(rendered), checkpoint_step)
    connection.execute(f"INSERT INTO attempts {columns} VALUES (?, ?, ?, ?, ?, ?, ?)", values)  # noqa: S608
    connection.executemany(
        "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
        [(run, attempt, *(getattr(node, column) for column in _NODE_COLUMNS)) for node in nodes],
    )


def newest(connection: sqlite3.Connection, run: str) -> int:
    """Number of the run's newest attempt; 0 before the first."""
    row = connection.execute("SELECT max(attempt) FROM attempts WHERE run = ?", (run,)).fetchone()
    return int(row[0] or 0)


def checkpoint_step(connection: sqlite3.Connection, run: str, attempt: int) -> int | None:
    """The step of the checkpoint that an attempt went on from; None when it began at the start."""
    row = connection.execute(
        "SELECT checkpoint_step FROM attempts WHERE run = ? AND attempt = ?", (run, attempt)
    ).fetchone()
    return None if row is None else row["checkpoint_step"]


def ended_at(connection: sqlite3.Connection, run: str, attempt: int, told: float) -> float:
    """When an attempt ended, by our clock. If all nodes report an end, theirs counts: the server may not have run then.

    `told`: when the end was recorded. The result is never before the start of the attempt, whatever a node says.
    """
    row = connection.execute("SELECT created FROM attempts WHERE run = ? AND attempt = ?", (run, attempt)).fetchone()
    began = told if row is None else min(told, row["created"])
    records = nodes(connection, run, attempt)
    exits = [(record.exit or {}).get("time") for record in records]
    ours = [at - record.clock_offset_s for at, record in zip(exits, records, strict=True) if at is not None]
    return max(began, min(told, max(ours))) if ours and len(ours) == len(records) else told


def secret_names(connection: sqlite3.Connection, run: str, attempt: int) -> list[str]:
    """The secrets that an attempt was started with, by name; nothing else of them is kept."""
    row = connection.execute(
        "SELECT json_extract(rendered, '$.secrets') AS names FROM attempts WHERE run = ? AND attempt = ?",
        (run, attempt),
    ).fetchone()
    return [] if row is None or row["names"] is None else list(json.loads(row["names"]))


def nodes(connection: sqlite3.Connection, run: str, attempt: int) -> tuple[NodeRecord, ...]:
    """The nodes of an attempt by rank."""
    rows = connection.execute("SELECT * FROM nodes WHERE run = ? AND attempt = ? ORDER BY rank", (run, attempt))
    return tuple(_node(row) for row in rows)


def set_stop(connection: sqlite3.Connection, run: str, attempt: int, rank: int, answer: Stopped) -> None:
    """Keep the supervisor's newest answer to `stop`."""
    connection.execute(
        "UPDATE nodes SET stop = ? WHERE run = ? AND attempt = ? AND rank = ?",
        (json.dumps(answer), run, attempt, rank),
    )


def set_clock_offset(connection: sqlite3.Connection, run: str, attempt: int, rank: int, offset_s: float) -> None:
    """How far a node's clock is ahead of ours now."""
    connection.execute(
        "UPDATE nodes SET clock_offset_s = ? WHERE run = ? AND attempt = ? AND rank = ?", (offset_s, run, attempt, rank)
    )


def set_exit(connection: sqlite3.Connection, run: str, attempt: int, rank: int, ended: Exit) -> bool:
    """Keep a node's exit record; False when it is known already."""
    changed = connection.execute(
        "UPDATE nodes SET exit = ? WHERE run = ? AND attempt = ? AND rank = ? AND exit IS NULL",
        (json.dumps(ended), run, attempt, rank),
    )
    return changed.rowcount == 1


def _node(row: sqlite3.Row) -> NodeRecord:
    values: dict[str, Any] = {key: row[key] for key in _NODE_COLUMNS}
    return NodeRecord(**values, exit=stored_exit(row["exit"]), stop=stored(Stopped, row["stop"]))
