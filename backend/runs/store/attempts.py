"""Attempts of runs and their nodes in the store: functions on a connection, as in run_store.py."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
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
    """Record an attempt before its start. `checkpoint_step`: the step that it resumes from."""
    columns = "(run, attempt, created, master_address, master_port, rendered, checkpoint_step)"
    values = (run, attempt, time, *master, json.dumps(rendered), checkpoint_step)
    connection.execute(f"INSERT INTO attempts {columns} VALUES (?, ?, ?, ?, ?, ?, ?)", values)  # noqa: S608
    connection.executemany(
        "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
        [(run, attempt, *(getattr(node, column) for column in _NODE_COLUMNS)) for node in nodes],
    )


def newest(connection: sqlite3.Connection, run: str) -> int:
    """Return the number of the newest attempt of a run; 0 before the first."""
    row = connection.execute("SELECT max(attempt) FROM attempts WHERE run = ?", (run,)).fetchone()
    return int(row[0] or 0)


def checkpoint_step(connection: sqlite3.Connection, run: str, attempt: int) -> int | None:
    """Return the step that an attempt resumed from; None when it started from the beginning."""
    row = connection.execute(
        "SELECT checkpoint_step FROM attempts WHERE run = ? AND attempt = ?", (run, attempt)
    ).fetchone()
    return None if row is None else row["checkpoint_step"]


def ended_at(connection: sqlite3.Connection, run: str, attempt: int, recorded: float) -> float:
    """Return when an attempt ended, by our clock.

    If all nodes report an exit, their times count, because no server may have run then. `recorded`: when the end was
    recorded. The result is never before the start of the attempt.
    """
    row = connection.execute("SELECT created FROM attempts WHERE run = ? AND attempt = ?", (run, attempt)).fetchone()
    began = recorded if row is None else min(recorded, row["created"])
    records = nodes(connection, run, attempt)
    exits = [(record.exit or {}).get("time") for record in records]
    ours = [at - record.clock_offset_s for at, record in zip(exits, records, strict=True) if at is not None]
    return max(began, min(recorded, max(ours))) if ours and len(ours) == len(records) else recorded


def secret_names(connection: sqlite3.Connection, run: str, attempt: int) -> list[str]:
    """Return the names of the secrets of an attempt. The store holds only the names."""
    row = connection.execute(
        "SELECT json_extract(rendered, '$.secrets') AS names FROM attempts WHERE run = ? AND attempt = ?",
        (run, attempt),
    ).fetchone()
    return [] if row is None or row["names"] is None else list(json.loads(row["names"]))


def versions(connection: sqlite3.Connection, run: str, attempt: int, rank: int) -> dict[str, str]:
    """Return the versions of a node's software at the start of an attempt; empty for attempts of older servers."""
    row = connection.execute(
        "SELECT json_extract(rendered, ?) AS versions FROM attempts WHERE run = ? AND attempt = ?",
        (f'$.versions."{int(rank)}"', run, attempt),
    ).fetchone()
    return {} if row is None or row["versions"] is None else dict(json.loads(row["versions"]))


def hostnames(connection: sqlite3.Connection, run: str, attempt: int) -> dict[int, str]:
    """Return the nodes' own names by node rank (launch.Attempt); empty for attempts of older servers."""
    row = connection.execute(
        "SELECT json_extract(rendered, '$.hostnames') AS names FROM attempts WHERE run = ? AND attempt = ?",
        (run, attempt),
    ).fetchone()
    return {} if row is None or row["names"] is None else {int(k): name for k, name in json.loads(row["names"]).items()}


def nodes(connection: sqlite3.Connection, run: str, attempt: int) -> tuple[NodeRecord, ...]:
    """Return the nodes of an attempt by rank."""
    rows = connection.execute("SELECT * FROM nodes WHERE run = ? AND attempt = ? ORDER BY rank", (run, attempt))
    return tuple(_node(row) for row in rows)


def set_stop(connection: sqlite3.Connection, run: str, attempt: int, rank: int, answer: Stopped) -> None:
    """Store the supervisor's newest answer to `stop`."""
    connection.execute(
        "UPDATE nodes SET stop = ? WHERE run = ? AND attempt = ? AND rank = ?",
        (json.dumps(answer), run, attempt, rank),
    )


def set_addresses(connection: sqlite3.Connection, run: str, attempt: int, names: Sequence[str]) -> None:
    """Store the names of the nodes that a scheduler gave to an attempt, in the order of their ranks."""
    connection.executemany(
        "UPDATE nodes SET address = ? WHERE run = ? AND attempt = ? AND rank = ?",
        [(name, run, attempt, rank) for rank, name in enumerate(names)],
    )


def set_clock_offset(connection: sqlite3.Connection, run: str, attempt: int, rank: int, offset_s: float) -> None:
    """Store how far a node's clock is ahead of ours."""
    connection.execute(
        "UPDATE nodes SET clock_offset_s = ? WHERE run = ? AND attempt = ? AND rank = ?", (offset_s, run, attempt, rank)
    )


def set_exit(connection: sqlite3.Connection, run: str, attempt: int, rank: int, ended: Exit) -> bool:
    """Store a node's exit record; return False when it was stored before."""
    changed = connection.execute(
        "UPDATE nodes SET exit = ? WHERE run = ? AND attempt = ? AND rank = ? AND exit IS NULL",
        (json.dumps(ended), run, attempt, rank),
    )
    return changed.rowcount == 1


def _node(row: sqlite3.Row) -> NodeRecord:
    values: dict[str, Any] = {key: row[key] for key in _NODE_COLUMNS}
    return NodeRecord(**values, exit=stored_exit(row["exit"]), stop=stored(Stopped, row["stop"]))
