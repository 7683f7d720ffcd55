"""Automatic restarts: what a new start of the gang can cure, how often, and when. On a connection, as in run_store.py.

A node that went away, a broken collective, a hang and a killed process do not come from the job; too little memory, a
loss that is not finite and a wrong configuration do, and would only come again.
"""

import sqlite3

from backend.job.problems import Problem
from backend.runs.records import Event, problem_to_json
from backend.runs.states import EventKind
from backend.runs.store import metrics, queue_order, run_store
from backend.runs.view.history import restarts_used

RESTARTS = 3
"""How often the gang of a run is restarted unless its user says otherwise."""
CURABLE = frozenset(
    {
        "node_lost",
        "node_restarted",
        "node_not_stopped",
        "supervisor_gone",
        "killed",
        "communication_failed",
        "collective_not_joined",
        "collective_hung",
        "gpu_memory_contained",
    }
)
"""Codes of the problems after which the gang is restarted. Of the GPUs' own only the one that a restart of the program
cures, by NVIDIA's catalogue: after the others the GPU or the machine wants a reset first."""
FIRST_WAIT_S = 10.0
"""Before the restart; doubled, up to LONGEST_WAIT_S, as long as its nodes are not ready."""
LONGEST_WAIT_S = 300.0
GIVE_UP_S = 3600.0
"""A restart whose nodes were not ready for so long fails: a machine boots in minutes."""


def end(
    connection: sqlite3.Connection,
    run: str,
    attempt: int,
    kind: EventKind,
    *,
    rank: int | None,
    problem: Problem | None,
    time: float,
) -> None:
    """Record how an attempt ended: `kind`, or in its place a restart where the cause is curable and one is left."""
    detail: dict[str, object] = {"problem": problem_to_json(problem)} if problem is not None else {}
    used, of = restarts_used(run_store.events(connection, run)), allowed(connection, run)
    if problem is None or used >= of or not _is_curable(connection, run, attempt, problem):
        run_store.append(connection, run, kind, time=time, attempt=attempt, rank=rank, detail=detail)
        return
    detail |= {"number": used + 1, "of": of}
    if run_store.append(connection, run, EventKind.RESTARTING, time=time, attempt=attempt, rank=rank, detail=detail):
        queue_order.add(connection, run, first=True, not_before=time + FIRST_WAIT_S)


def wait_again(connection: sqlite3.Connection, run: str, problem: Problem, time: float) -> bool:
    """Put a restart whose nodes are not ready back into the queue; False when it waited long enough."""
    restarting = under_way(connection, run)
    if restarting is None or time - restarting.time > GIVE_UP_S:
        return False
    waits = sum(event.kind is EventKind.WAITING for event in run_store.events(connection, run, after=restarting.seq))
    detail = {"problem": problem_to_json(problem)}
    if not run_store.append(connection, run, EventKind.WAITING, time=time, detail=detail):
        return False
    queue_order.add(
        connection, run, first=True, not_before=time + min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (waits + 1))
    )
    return True


def under_way(connection: sqlite3.Connection, run: str) -> Event | None:
    """The restart that has not started its attempt yet; None when what is next was asked for by a user."""
    kinds = (EventKind.RESTARTING, EventKind.RESUMED, EventKind.CREATED, EventKind.STARTING)
    newest = next((event for event in reversed(run_store.events(connection, run)) if event.kind in kinds), None)
    return newest if newest is not None and newest.kind is EventKind.RESTARTING else None


def allowed(connection: sqlite3.Connection, run: str) -> int:
    """How often the gang may be restarted by itself; counted anew when a user resumes the run."""
    return int(run_store.run_row(connection, run)["restarts"])


def allow(connection: sqlite3.Connection, run: str, restarts: int) -> None:
    """Change how often the gang may be restarted by itself; 0: never. ProblemsError(unknown_run)."""
    run_store.run_row(connection, run)
    connection.execute("UPDATE runs SET restarts = ? WHERE id = ?", (restarts, run))


def _is_curable(connection: sqlite3.Connection, run: str, attempt: int, problem: Problem) -> bool:
    """A loss that is not finite is in the checkpoints too, whatever ended the gang afterwards.

    A gang that stalls after some steps hangs in its network or machines; before the first, in what it was told.
    """
    broken = run_store.has_event(connection, run, attempt, EventKind.LOSS_NOT_FINITE)
    hung = problem.code == "stalled" and bool(metrics.newest_points(connection, run, attempt, count=1))
    return (problem.code in CURABLE or hung) and not broken
