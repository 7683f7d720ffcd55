"""Automatic restarts: for which failures, how often, when, and whether a spare replaces a node.

A restart helps after a lost node, a failed collective, a hang or a killed process. It does not help after an error of
the job, which would come again: too little memory, a loss that is not finite, or a wrong configuration.
store/node_replacement.py records the spare. All functions work on a connection, as in run_store.py.
"""

import sqlite3

from backend.job.problems import Problem
from backend.runs.diagnosis import gpu_errors
from backend.runs.records import Event, problem_to_json
from backend.runs.states import EventKind
from backend.runs.store import attempts, metrics, node_replacement, queue_order, run_store
from backend.runs.view.history import restarts_used

RESTARTS = 3
"""Default number of automatic restarts."""
SLOW = ("node_slow_gpu", "node_slow_load")
"""Codes of the problems of a node that made all others wait (slow_node.py)."""
CURABLE = frozenset(
    {
        "node_lost",
        "node_restarted",
        "node_not_stopped",
        "supervisor_gone",
        "container_daemon_gone",
        "killed",
        "communication_failed",
        "collective_not_joined",
        "collective_hung",
        "gpu_memory_contained",
        "slurm_node_failed",
        "slurm_node_silent",
        *SLOW,
    }
)
"""Codes of the problems after which the gang is restarted. Of the GPU errors, a restart of the program cures only this
one according to NVIDIA's catalogue; after the others, the GPU or the machine needs a reset."""
CURABLE_AFTER_STEPS = frozenset(
    {"stalled", "collective_timed_out", "rdma_gid_index", "nccl_firewall", "nccl_node_network", "nccl_system_error"}
)
"""Codes of the problems that come from the network or the machines if the attempt had steps; otherwise from the job or
the settings.
"""
REPLACEABLE = frozenset(
    {"node_lost", "node_restarted", "node_not_stopped", "processes_left", *SLOW, *gpu_errors.CODES.values()}
)
"""Codes of the problems of a node that ends an attempt and that a spare takes the place of. The last of them end a run
for good where there is no spare: a restart of the program does not cure the GPU."""
UNREADY = frozenset({"timeout", "unreachable", "refused", "lost", "authentication", "gpus_missing", "no_gpus"})
"""Codes of a preflight for a node that does not come back for an automatic restart."""
ALLOCATION_ENDED = frozenset({"slurm_preempted", "slurm_time_limit"})
"""Codes of the ends of an allocation that are no failure: the run continues in a new one, and no restart is used up."""
FIRST_WAIT_S = 10.0
"""Wait before a restart. It doubles, up to LONGEST_WAIT_S, while the nodes are not ready."""
LONGEST_WAIT_S = 300.0
GIVE_UP_S = 3600.0
"""A restart fails when its nodes were not ready for this time. A machine boots in minutes."""


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
    """Record the end of an attempt: `kind`, or a restart if the cause is curable and a restart is left."""
    detail: dict[str, object] = {"problem": problem_to_json(problem)} if problem is not None else {}
    restarts, most_restarts = _restarts(connection, run)
    if problem is not None and _continues(connection, run, attempt, problem):
        _restart(connection, run, attempt, rank=rank, detail={**detail, "counted": False}, time=time)
        return
    can_replace = problem is not None and _can_replace(connection, run, attempt, problem)
    if (
        problem is None
        or restarts >= most_restarts
        or not (can_replace or _is_curable(connection, run, attempt, problem))
    ):
        run_store.append(connection, run, kind, time=time, attempt=attempt, rank=rank, detail=detail)
        return
    detail |= {"number": restarts + 1, "of": most_restarts}
    _restart(connection, run, attempt, rank=rank, detail=detail, time=time)
    if can_replace:
        node_replacement.replace_node(connection, run, attempt, problem, time)


def _can_replace(connection: sqlite3.Connection, run: str, attempt: int, problem: Problem) -> bool:
    """Return whether a spare can take the place of the node that the problem names."""
    is_of_node = problem.code in REPLACEABLE and problem.node is not None
    return is_of_node and _has_spare(connection, run, attempt)


def can_replace(connection: sqlite3.Connection, run: str, attempt: int) -> bool:
    """Return whether a restart is left, and a spare for a node of a running attempt."""
    used, most = _restarts(connection, run)
    return used < most and _has_spare(connection, run, attempt)


def _has_spare(connection: sqlite3.Connection, run: str, attempt: int) -> bool:
    broken = run_store.has_event(connection, run, attempt, EventKind.LOSS_NOT_FINITE)
    return not broken and node_replacement.next_spare(connection, run) is not None


def _restarts(connection: sqlite3.Connection, run: str) -> tuple[int, int]:
    """Return the number of automatic restarts so far, and the allowed number."""
    return restarts_used(run_store.events(connection, run)), allowed(connection, run)


def _restart(
    connection: sqlite3.Connection, run: str, attempt: int, *, rank: int | None, detail: dict[str, object], time: float
) -> None:
    if run_store.append(connection, run, EventKind.RESTARTING, time=time, attempt=attempt, rank=rank, detail=detail):
        queue_order.add(connection, run, first=True, not_before=time + FIRST_WAIT_S)


def _continues(connection: sqlite3.Connection, run: str, attempt: int, problem: Problem) -> bool:
    """Return whether the run continues in a new allocation.

    It does not after a time limit if it began at the same checkpoint as the attempt before: it would never end.
    """
    if problem.code not in ALLOCATION_ENDED:
        return False
    if problem.code == "slurm_preempted" or attempt == 1:
        return True
    began = [attempts.checkpoint_step(connection, run, number) or 0 for number in (attempt - 1, attempt)]
    return began[1] > began[0]


def wait_again(connection: sqlite3.Connection, run: str, problem: Problem, time: float) -> bool:
    """Put a restart whose nodes are not ready back into the queue; return False when it waited too long."""
    restarting = under_way(connection, run)
    if restarting is None or time - restarting.time > GIVE_UP_S:
        return False
    waits = sum(event.kind is EventKind.WAITING for event in run_store.events(connection, run, after=restarting.seq))
    detail = {"problem": problem_to_json(problem)}
    if not run_store.append(connection, run, EventKind.WAITING, time=time, detail=detail):
        return False
    attempt = attempts.newest(connection, run)
    if problem.code in UNREADY and node_replacement.replace_node(connection, run, attempt, problem, time):
        queue_order.add(connection, run, first=True, not_before=time)
        return True
    queue_order.add(
        connection, run, first=True, not_before=time + min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (waits + 1))
    )
    return True


def under_way(connection: sqlite3.Connection, run: str) -> Event | None:
    """Return the automatic restart that has not started its attempt yet; None when a user requested the next one."""
    kinds = (EventKind.RESTARTING, EventKind.RESUMED, EventKind.CREATED, EventKind.STARTING)
    newest = next((event for event in reversed(run_store.events(connection, run)) if event.kind in kinds), None)
    return newest if newest is not None and newest.kind is EventKind.RESTARTING else None


def allowed(connection: sqlite3.Connection, run: str) -> int:
    """Return the allowed number of automatic restarts. The count starts again when a user resumes the run."""
    return int(run_store.run_row(connection, run)["restarts"])


def allow(connection: sqlite3.Connection, run: str, restarts: int) -> None:
    """Set the allowed number of automatic restarts. Raises ProblemsError(unknown_run)."""
    run_store.run_row(connection, run)
    connection.execute("UPDATE runs SET restarts = ? WHERE id = ?", (restarts, run))


def _is_curable(connection: sqlite3.Connection, run: str, attempt: int, problem: Problem) -> bool:
    """Return whether a restart can help.

    A loss that is not finite is in the checkpoints too.
    """
    broken = run_store.has_event(connection, run, attempt, EventKind.LOSS_NOT_FINITE)
    has_steps = bool(metrics.newest_points(connection, run, attempt, count=1))
    return (problem.code in CURABLE or (problem.code in CURABLE_AFTER_STEPS and has_steps)) and not broken
