"""Runs, their claims and their events in the store. Functions on a connection, called inside write() or read()."""

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from backend.job.job import Job
from backend.job.mapping import load_job
from backend.job.problems import Problem, ProblemsError
from backend.runs.collect.node_records import event_detail
from backend.runs.records import Event, problem_from_json, stored_mapping, unreadable
from backend.runs.redact import without_known_secrets
from backend.runs.states import FINAL, MOVING, EventKind, RunState, fold, next_state
from backend.runs.store import attempts

_LEAVING_THE_QUEUE = MOVING - {EventKind.PREFLIGHT}
"""The preflight is left out: a run whose server dies before the start keeps its place."""


def create_run(
    connection: sqlite3.Connection,
    run: str,
    *,
    name: str,
    engine: str,
    job: str,
    addresses: Iterable[str],
    time: float,
    restarts: int = 0,
    source: Mapping[str, Any] | None = None,
    accepted: str | Sequence[str] | None = None,
) -> None:
    """Record a new run and claim its nodes. Raises ProblemsError(node_taken) when another unfinished run holds one.

    `source`: the checkpoint of another run that it starts from. `accepted`: the value of accepted_warnings.to_stored.
    """
    columns = "(id, name, engine, job, created, restarts)"
    values = (run, name, engine, job, time, restarts)
    connection.execute(f"INSERT INTO runs {columns} VALUES (?, ?, ?, ?, ?, ?)", values)  # noqa: S608
    claim(connection, run, addresses)
    append(connection, run, EventKind.CREATED, time=time, detail=_without_none(source=source, accepted=accepted))


def source_of(connection: sqlite3.Connection, run: str) -> Mapping[str, Any] | None:
    """Return the checkpoint of another run that this one starts from: `run`, `step` and `folder`."""
    row = connection.execute("SELECT detail FROM events WHERE run = ? AND kind = 'created'", (run,)).fetchone()
    source: Mapping[str, Any] | None = None if row is None else stored_mapping(run, row["detail"]).get("source")
    return source


def claim(connection: sqlite3.Connection, run: str, addresses: Iterable[str]) -> None:
    """Claim nodes for a run until it ends. Raises ProblemsError(node_taken) when another unfinished run holds one."""
    for address in addresses:
        holder = connection.execute("SELECT run FROM claims WHERE address = ?", (address,)).fetchone()
        if holder is None:
            connection.execute("INSERT INTO claims VALUES (?, ?)", (address, run))
        elif holder["run"] != run:
            values = {"run": holder["run"], "node": address}
            raise ProblemsError([Problem(code="node_taken", field="cluster.hosts", node=address, values=values)])


def claims(connection: sqlite3.Connection) -> dict[str, str]:
    """Return address -> the unfinished run that holds the node."""
    return {row["address"]: row["run"] for row in connection.execute("SELECT address, run FROM claims")}


def run_of_token(connection: sqlite3.Connection, token: str) -> str | None:
    """Return the run that a launch with this token created; None before it.

    Raises ProblemsError when it was deleted: run_archived where an archive was kept, else run_deleted.
    """
    row = connection.execute("SELECT run FROM launches WHERE token = ?", (token,)).fetchone()
    if row is None:
        deleted = connection.execute(
            "SELECT run FROM deleted_runs, json_each(deleted_runs.tokens) used WHERE used.value = ?", (token,)
        ).fetchone()
        if deleted is not None:
            refuse_deleted(connection, deleted["run"])
    return None if row is None else str(row["run"])


def record_token(connection: sqlite3.Connection, token: str, run: str) -> None:
    """Record that a launch with this token is this run."""
    connection.execute("INSERT INTO launches VALUES (?, ?)", (token, run))


def append(
    connection: sqlite3.Connection,
    run: str,
    kind: EventKind,
    *,
    time: float,
    attempt: int | None = None,
    rank: int | None = None,
    detail: Mapping[str, Any] | None = None,
) -> bool:
    """Append an event of the newest attempt, or of `attempt`.

    Return False, and write nothing, when the kind of the event changes the state of a run, but not its current state.

    So of two processes that detect the same end of a run, one records it. A final event frees the run's nodes and its
    place in the queue.
    """
    state = state_of(connection, run)
    new_state = next_state(state, kind)
    if kind in MOVING and new_state is state:
        return False
    attempt = max(1, attempts.newest(connection, run)) if attempt is None else attempt
    connection.execute(
        "INSERT INTO events (run, attempt, rank, kind, time, detail) VALUES (?, ?, ?, ?, ?, ?)",
        (run, attempt, rank, kind.value, time, without_known_secrets(json.dumps(detail or {}, default=str))),
    )
    if kind is EventKind.RESUMED:
        connection.execute("UPDATE runs SET ended = NULL WHERE id = ?", (run,))
    if new_state in FINAL and kind in MOVING:
        ended = attempts.ended_at(connection, run, attempt, time)
        connection.execute("UPDATE runs SET ended = ? WHERE id = ?", (ended, run))
        connection.execute("DELETE FROM claims WHERE run = ?", (run,))
    if new_state is not RunState.QUEUED and kind in _LEAVING_THE_QUEUE:
        connection.execute("DELETE FROM queue WHERE run = ?", (run,))
    return True


def state_of(connection: sqlite3.Connection, run: str) -> RunState | None:
    """Return the state after all events of a run; None for an unknown run. Raises ProblemsError(run_unreadable)."""
    rows = connection.execute("SELECT kind FROM events WHERE run = ? ORDER BY seq", (run,))
    return fold(_kind(run, row["kind"]) for row in rows)


def events(connection: sqlite3.Connection, run: str, *, after: int = 0, newest: int | None = None) -> list[Event]:
    """Return a run's events in order: those after a cursor, or the newest few."""
    rows = connection.execute(
        "SELECT * FROM events WHERE run = ? AND seq > ? ORDER BY seq DESC LIMIT ?",
        (run, after, -1 if newest is None else newest),
    ).fetchall()
    return [_event(row) for row in reversed(rows)]


def events_of_attempt(connection: sqlite3.Connection, run: str, attempt: int, kind: EventKind) -> list[Event]:
    """Return the events of one kind of an attempt, in order. The other events of the run are not read."""
    rows = connection.execute(
        "SELECT * FROM events WHERE run = ? AND attempt = ? AND kind = ? ORDER BY seq", (run, attempt, kind.value)
    )
    return [_event(row) for row in rows]


def events_of(connection: sqlite3.Connection, kinds: Collection[EventKind], *, after: int) -> list[Event]:
    """Return the events of all runs of some kinds after a cursor, in order, without unreadable ones."""
    placeholders = ", ".join("?" * len(kinds))
    rows = connection.execute(
        f"SELECT * FROM events WHERE seq > ? AND kind IN ({placeholders}) ORDER BY seq",  # noqa: S608
        (after, *(kind.value for kind in kinds)),
    )
    events = []
    for row in rows:
        with suppress(ProblemsError):  # the list of runs says that it is broken
            events.append(_event(row))
    return events


def event_counts(connection: sqlite3.Connection, run: str) -> dict[EventKind, int]:
    """Return the number of events of a run by kind. Kinds of a newer version are left out."""
    known = {kind.value: kind for kind in EventKind}
    rows = connection.execute("SELECT kind, count(*) AS number FROM events WHERE run = ? GROUP BY kind", (run,))
    return {known[row["kind"]]: row["number"] for row in rows if row["kind"] in known}


def messages_sent(connection: sqlite3.Connection) -> int:
    """Return the `seq` of the newest event that the operator was notified of. Before the first notification, it is that
    of the newest event.
    """
    row = connection.execute(
        "SELECT coalesce((SELECT event FROM messages_sent), (SELECT max(seq) FROM events), 0)"
    ).fetchone()
    return int(row[0])


def begin_messages(connection: sqlite3.Connection) -> None:
    """Notify the operator only of events from now on, unless a notification was sent before."""
    connection.execute("INSERT OR IGNORE INTO messages_sent SELECT 1, coalesce(max(seq), 0) FROM events")


def set_messages_sent(connection: sqlite3.Connection, event: int) -> None:
    """Record that the operator was notified of the events up to this one."""
    connection.execute("REPLACE INTO messages_sent VALUES (1, ?)", (event,))


def has_event(connection: sqlite3.Connection, run: str, attempt: int, kind: EventKind, rank: int | None = None) -> bool:
    """Return whether the attempt has an event of this kind, on this node if one is given."""
    row = connection.execute(
        "SELECT 1 FROM events WHERE run = ? AND attempt = ? AND kind = ? AND rank IS coalesce(?, rank) LIMIT 1",
        (run, attempt, kind.value, rank),
    ).fetchone()
    return row is not None


def events_of_node(connection: sqlite3.Connection, run: str, attempt: int, kind: EventKind, rank: int) -> list[Event]:
    """Return the attempt's events of this kind on a node, in order."""
    rows = connection.execute(
        "SELECT * FROM events WHERE run = ? AND attempt = ? AND kind = ? AND rank = ? ORDER BY seq",
        (run, attempt, kind.value, rank),
    )
    return [_event(row) for row in rows]


def newest_detail(connection: sqlite3.Connection, run: str, attempt: int, kind: EventKind) -> Mapping[str, Any] | None:
    """Return the detail of the attempt's newest event of this kind; None without one."""
    row = connection.execute(
        "SELECT detail FROM events WHERE run = ? AND attempt = ? AND kind = ? ORDER BY seq DESC LIMIT 1",
        (run, attempt, kind.value),
    ).fetchone()
    return None if row is None else stored_mapping(run, row["detail"])


def cause_of(connection: sqlite3.Connection, run: str) -> Problem | None:
    """Return the newest recorded reason why the newest attempt fails or failed; None without one.

    None after a user has resumed the run, because the earlier reason is obsolete.
    """
    rows = connection.execute(
        "SELECT detail FROM events WHERE run = ? AND attempt >= ?"
        " AND seq > (SELECT coalesce(max(seq), 0) FROM events WHERE run = ? AND kind = 'resumed')"
        " AND kind IN ('failing', 'losing', 'failed', 'lost', 'restarting', 'waiting') ORDER BY seq DESC",
        (run, attempts.newest(connection, run), run),
    )
    problems = (stored_mapping(run, row["detail"]).get("problem") for row in rows)
    return next((problem_from_json(problem) for problem in problems if problem is not None), None)


def run_row(connection: sqlite3.Connection, run: str) -> sqlite3.Row:
    """Return the run's row.

    Raises ProblemsError: unknown_run when there is none, run_deleted or run_archived when there was
    one.
    """
    row = connection.execute("SELECT * FROM runs WHERE id = ?", (run,)).fetchone()
    if row is None:
        refuse_deleted(connection, run)
        raise ProblemsError([Problem(code="unknown_run", values={"run": run})])
    return row  # type: ignore[no-any-return]


def refuse_deleted(connection: sqlite3.Connection, run: str) -> None:
    """Raise ProblemsError(run_deleted, run_archived) for a deleted run, so that it does not count as unknown."""
    row = connection.execute("SELECT archive FROM deleted_runs WHERE run = ?", (run,)).fetchone()
    if row is not None:
        code = "run_archived" if row["archive"] else "run_deleted"
        raise ProblemsError([Problem(code=code, values={"run": run, "path": row["archive"] or ""})])


def job_of(connection: sqlite3.Connection, run: str) -> Job:
    """Return the job that a run was launched with. Raises ProblemsError(unknown_run)."""
    return run_job(run_row(connection, run)["job"])


@lru_cache(maxsize=64)
def run_job(text: str) -> Job:
    """Return the job in a run's row. A launched job stays readable for ever."""
    job, problems = load_job(text)
    if job is None:
        raise ProblemsError(problems)
    return job


def unfinished_runs(connection: sqlite3.Connection) -> list[str]:
    """Return the ids of the runs that have not ended, oldest first."""
    rows = connection.execute("SELECT id FROM runs WHERE ended IS NULL ORDER BY created, id")
    return [row["id"] for row in rows]


def _event(row: sqlite3.Row) -> Event:
    values = {key: row[key] for key in ("seq", "run", "attempt", "rank", "time")}
    kind = _kind(row["run"], row["kind"])
    return Event(**values, kind=kind, detail=event_detail(kind, stored_mapping(row["run"], row["detail"])))


def _kind(run: str, kind: str) -> EventKind:
    try:
        return EventKind(kind)
    except ValueError as error:
        raise unreadable(run, f"unknown event {kind!r}") from error


def _without_none(**values: object) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None}
