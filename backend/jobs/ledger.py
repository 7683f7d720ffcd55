"""Runs, attempts, nodes and events in the store: functions on a connection, called inside write() or read()."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from backend.job.problems import Problem, ProblemsError
from backend.jobs.records import Event, NodeRecord, problem_from_json
from backend.jobs.states import FINAL, MOVING, EventKind, RunState, fold, next_state

_NODE_COLUMNS = ("rank", "address", "folder", "python", "setup", "mark", "clock_offset_s")


def create_run(
    connection: sqlite3.Connection, run: str, *, name: str, engine: str, job: str, addresses: Iterable[str], time: float
) -> None:
    """Record a new run and take its nodes; ProblemsError(nodes_taken) when another unfinished run holds one."""
    connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, NULL)", (run, name, engine, job, time))
    for address in addresses:
        holder = connection.execute("SELECT run FROM claims WHERE address = ?", (address,)).fetchone()
        if holder is not None:
            values = {"run": holder["run"], "node": address}
            raise ProblemsError([Problem(code="node_taken", field="cluster.hosts", node=address, values=values)])
        connection.execute("INSERT INTO claims VALUES (?, ?)", (address, run))
    append(connection, run, EventKind.CREATED, time=time)


def create_attempt(
    connection: sqlite3.Connection,
    run: str,
    attempt: int,
    *,
    master: tuple[str, int],
    rendered: Mapping[str, Any],
    nodes: Iterable[NodeRecord],
    time: float,
) -> None:
    """Record what an attempt is going to start, before it starts."""
    values = (run, attempt, time, *master, json.dumps(rendered))
    connection.execute("INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?)", values)
    connection.executemany(
        "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
        [(run, attempt, *(getattr(node, column) for column in _NODE_COLUMNS)) for node in nodes],
    )


def append(
    connection: sqlite3.Connection,
    run: str,
    kind: EventKind,
    *,
    time: float,
    attempt: int = 1,
    rank: int | None = None,
    detail: Mapping[str, Any] | None = None,
) -> bool:
    """Append an event; False, and nothing is written, when it should move the state and cannot.

    So of two processes that see the same end of a run, one records it. A final event frees the run's nodes.
    """
    state = state_of(connection, run)
    after = next_state(state, kind)
    if kind in MOVING and after is state:
        return False
    connection.execute(
        "INSERT INTO events (run, attempt, rank, kind, time, detail) VALUES (?, ?, ?, ?, ?, ?)",
        (run, attempt, rank, kind.value, time, json.dumps(detail or {}, default=str)),
    )
    if after in FINAL and kind in MOVING:
        connection.execute("UPDATE runs SET ended = ? WHERE id = ?", (time, run))
        connection.execute("DELETE FROM claims WHERE run = ?", (run,))
    return True


def state_of(connection: sqlite3.Connection, run: str) -> RunState | None:
    """The fold of a run's events; None for an unknown run."""
    rows = connection.execute("SELECT kind FROM events WHERE run = ? ORDER BY seq", (run,))
    return fold(EventKind(row["kind"]) for row in rows)


def events(connection: sqlite3.Connection, run: str, *, after: int = 0, newest: int | None = None) -> list[Event]:
    """A run's events in order: those after a cursor, or the newest few."""
    rows = connection.execute(
        "SELECT * FROM events WHERE run = ? AND seq > ? ORDER BY seq DESC LIMIT ?",
        (run, after, -1 if newest is None else newest),
    ).fetchall()
    return [_event(row) for row in reversed(rows)]


def has_event(connection: sqlite3.Connection, run: str, attempt: int, kind: EventKind, rank: int | None = None) -> bool:
    """Whether the attempt has an event of this kind, on this node if one is given."""
    row = connection.execute(
        "SELECT 1 FROM events WHERE run = ? AND attempt = ? AND kind = ? AND rank IS coalesce(?, rank) LIMIT 1",
        (run, attempt, kind.value, rank),
    ).fetchone()
    return row is not None


def cause_of(connection: sqlite3.Connection, run: str) -> Problem | None:
    """Why a run fails or failed; the final word if there is one, else the first impression."""
    row = connection.execute(
        "SELECT detail FROM events WHERE run = ? AND kind IN ('failing', 'losing', 'failed', 'lost')"
        " AND json_extract(detail, '$.problem') IS NOT NULL ORDER BY seq DESC LIMIT 1",
        (run,),
    ).fetchone()
    return None if row is None else problem_from_json(json.loads(row["detail"])["problem"])


def run_row(connection: sqlite3.Connection, run: str) -> sqlite3.Row:
    """The run's row; ProblemsError(unknown_run) when there is none."""
    row = connection.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchone()
    if row is None:
        raise ProblemsError([Problem(code="unknown_run", values={"run": run})])
    return row  # type: ignore[no-any-return]


def unfinished_runs(connection: sqlite3.Connection) -> list[str]:
    """Ids of the runs that have not ended, oldest first."""
    rows = connection.execute("SELECT id FROM runs WHERE ended IS NULL ORDER BY created, id")
    return [row["id"] for row in rows]


def newest_attempt(connection: sqlite3.Connection, run: str) -> int:
    """Number of the run's newest attempt; 0 before the first."""
    row = connection.execute("SELECT max(attempt) FROM attempts WHERE run = ?", (run,)).fetchone()
    return int(row[0] or 0)


def nodes(connection: sqlite3.Connection, run: str, attempt: int) -> tuple[NodeRecord, ...]:
    """The nodes of an attempt by rank."""
    rows = connection.execute("SELECT * FROM nodes WHERE run = ? AND attempt = ? ORDER BY rank", (run, attempt))
    return tuple(_node(row) for row in rows)


def set_stop(connection: sqlite3.Connection, run: str, attempt: int, rank: int, answer: Mapping[str, Any]) -> None:
    """Keep the supervisor's newest answer to `stop`."""
    connection.execute(
        "UPDATE nodes SET stop = ? WHERE run = ? AND attempt = ? AND rank = ?",
        (json.dumps(answer), run, attempt, rank),
    )


def set_exit(connection: sqlite3.Connection, run: str, attempt: int, rank: int, ended: Mapping[str, Any]) -> bool:
    """Keep a node's exit record; False when it is known already."""
    changed = connection.execute(
        "UPDATE nodes SET exit = ? WHERE run = ? AND attempt = ? AND rank = ? AND exit IS NULL",
        (json.dumps(ended), run, attempt, rank),
    )
    return changed.rowcount == 1


def _event(row: sqlite3.Row) -> Event:
    values = {key: row[key] for key in ("seq", "run", "attempt", "rank", "time")}
    return Event(**values, kind=EventKind(row["kind"]), detail=json.loads(row["detail"]))


def _node(row: sqlite3.Row) -> NodeRecord:
    values: dict[str, Any] = {key: row[key] for key in _NODE_COLUMNS}
    for key in ("exit", "stop"):
        values[key] = None if row[key] is None else json.loads(row[key])
    return NodeRecord(**values)
