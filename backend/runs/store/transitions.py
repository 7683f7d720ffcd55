"""State transitions that users request. Each is one transaction, or raises ProblemsError.

Functions on a connection, as in run_store.py. Requests at the same time run one after the other.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from backend.job.job import Job
from backend.job.mapping import dump_job
from backend.job.problems import Problem, ProblemsError
from backend.runs.records import StartCheckpoint
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, derived_runs, node_replacement, queue_order, run_store
from backend.runs.view.history import is_saving


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchRequest:
    """Options of a launch."""

    token: str | None
    restarts: int
    source: StartCheckpoint | None
    accepted: str | list[str]
    """The warnings, as accepted_warnings.to_stored returns them."""


def create(
    connection: sqlite3.Connection, run: str, job: Job, request: LaunchRequest, *, waits: bool, now: float
) -> str:
    """Create a run that claims its nodes, or `waits` in the queue; return its id, or the earlier run of the token."""
    earlier_run = run_store.run_of_token(connection, request.token) if request.token else None
    if earlier_run is not None:
        return earlier_run
    run_store.create_run(
        connection,
        run,
        name=job.name,
        engine=job.engine,
        job=dump_job(job),
        addresses=[] if waits else queue_order.addresses_of(job),
        time=now,
        restarts=request.restarts,
        source=asdict(request.source) if request.source else None,
        accepted=request.accepted,
    )
    if request.token:
        run_store.record_token(connection, request.token, run)
    if waits:
        queue_order.add(connection, run)
    else:
        run_store.append(connection, run, EventKind.PREFLIGHT, time=now)
    return run


def take_up(connection: sqlite3.Connection, run: str, job: Job, policy: Mapping[str, object], *, now: float) -> None:
    """Let an ended run claim its nodes for the next attempt."""
    refuse_unless_ended(connection, run)
    run_store.append(connection, run, EventKind.RESUMED, time=now, detail=policy)
    run_store.claim(connection, run, queue_order.addresses_of(job))
    run_store.append(connection, run, EventKind.PREFLIGHT, time=now)


def wait_again(connection: sqlite3.Connection, run: str, policy: Mapping[str, object], *, now: float) -> None:
    """Put an ended run into the queue for its next attempt."""
    refuse_unless_ended(connection, run)
    run_store.append(connection, run, EventKind.RESUMED, time=now, detail=policy)
    queue_order.add(connection, run)


def take_turn(connection: sqlite3.Connection, run: str, *, now: float) -> bool:
    """Let a queued run claim its nodes; return False when it may not start now or another process was faster."""
    if run not in queue_order.turns(connection, now):
        return False
    job = node_replacement.job_on_nodes(connection, run)
    run_store.claim(connection, run, queue_order.addresses_of(job))
    return run_store.append(connection, run, EventKind.PREFLIGHT, time=now)


def end(connection: sqlite3.Connection, run: str, *, save: bool, now: float) -> None:
    """Request the stop of a run, cancel it in the queue, or end its monitoring. Without `save`, skip a pending save."""
    run_store.run_row(connection, run)
    state = run_store.state_of(connection, run)
    if run_store.append(connection, run, EventKind.UNWATCHED, time=now):
        return
    if run_store.append(connection, run, EventKind.STOP_REQUESTED, time=now, detail={"save": save}):
        if state is RunState.QUEUED and not attempts.newest(connection, run):
            run_store.append(connection, run, EventKind.STOPPED, time=now)
        return
    if state is not RunState.STOPPING:
        raise ProblemsError([Problem(code="run_ended", values={"run": run})])
    if not save and is_saving(run_store.events(connection, run)):
        run_store.append(connection, run, EventKind.STOP_FORCED, time=now)


def refuse_unless_ended(connection: sqlite3.Connection, run: str) -> None:
    """Raise ProblemsError unless the run has ended: cannot_resume, unknown_run, run_deleted, run_archived."""
    run_store.run_row(connection, run)
    state = run_store.state_of(connection, run)
    if state is None or not state.can_resume or derived_runs.read(connection, run) is not None:
        raise cannot_resume(run, state)


def cannot_resume(run: str, state: RunState | None) -> ProblemsError:
    """Return the error for a run in this state."""
    return ProblemsError([Problem(code="cannot_resume", values={"run": run, "state": state and state.value})])
