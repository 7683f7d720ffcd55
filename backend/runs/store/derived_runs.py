"""Runs that use the model of another run: chats and evaluations. Functions on a connection, as in run_store.py.

A derived run has a row in `runs` like any other run. So it has a state, events and logs, claims its node, waits in the
queue, and proves its end.
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from backend.job.job import Job
from backend.job.mapping import dump_job
from backend.runs.records import stored_mapping
from backend.runs.store import queue_order, run_store

Kind = Literal["chat", "evaluation"]
KINDS: tuple[Kind, ...] = ("chat", "evaluation")
"""Each is also the `engine` of its runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DerivedRun:
    """What a derived run does."""

    run: str
    kind: Kind
    trained: str
    """The run whose model it uses. That run may have been deleted."""
    request: Mapping[str, Any]
    """What the user asked for, as serving.py and evaluation.py define it."""


def create(connection: sqlite3.Connection, derived: DerivedRun, job: Job, *, now: float) -> str:
    """Put a derived run into the queue, and return its id: that of an unfinished one of the same kind, if there is one.

    `job`: the job of the derived run, with its node alone.
    """
    existing = newest(connection, derived.trained, derived.kind)
    if existing is not None:
        state = run_store.state_of(connection, existing.run)
        if state is not None and not state.is_final:
            return existing.run
    run = derived.run
    run_store.create_run(
        connection, run, name=job.name, engine=derived.kind, job=dump_job(job), addresses=[], time=now, accepted="any"
    )
    values = (run, derived.kind, derived.trained, json.dumps(derived.request))
    connection.execute("INSERT INTO derived_runs VALUES (?, ?, ?, ?)", values)
    queue_order.add(connection, run)
    return run


def read(connection: sqlite3.Connection, run: str) -> DerivedRun | None:
    """Return what a derived run does; None for any other run. Raises ProblemsError(run_unreadable)."""
    row = connection.execute("SELECT * FROM derived_runs WHERE run = ?", (run,)).fetchone()
    return None if row is None else _derived(row)


def newest(connection: sqlite3.Connection, trained: str, kind: Kind) -> DerivedRun | None:
    """Return the newest derived run of a kind for a trained run; None without one.

    Raises ProblemsError(run_unreadable).
    """
    row = connection.execute(
        "SELECT d.* FROM derived_runs d JOIN runs r ON r.id = d.run WHERE d.trained = ? AND d.kind = ?"
        " ORDER BY r.created DESC, r.id DESC LIMIT 1",
        (trained, kind),
    ).fetchone()
    return None if row is None else _derived(row)


def add_result(connection: sqlite3.Connection, run: str, result: Mapping[str, Any], *, now: float) -> None:
    """Store the result of an evaluation. A second one changes nothing."""
    values = (run, json.dumps(result, ensure_ascii=False), now)
    connection.execute("INSERT OR IGNORE INTO evaluations VALUES (?, ?, ?)", values)


def has_result(connection: sqlite3.Connection, run: str) -> bool:
    """Return whether the result of an evaluation is stored."""
    return connection.execute("SELECT 1 FROM evaluations WHERE run = ?", (run,)).fetchone() is not None


def result_of(connection: sqlite3.Connection, run: str) -> Mapping[str, Any] | None:
    """Return the result of an evaluation; None before it is stored. Raises ProblemsError(run_unreadable)."""
    row = connection.execute("SELECT result FROM evaluations WHERE run = ?", (run,)).fetchone()
    return None if row is None else stored_mapping(run, row["result"])


def _derived(row: sqlite3.Row) -> DerivedRun:
    request = stored_mapping(row["run"], row["request"])
    return DerivedRun(run=row["run"], kind=row["kind"], trained=row["trained"], request=request)
