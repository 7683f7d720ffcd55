"""Diagnosis of a gang that makes no progress while it still runs: since when, and for which ranks the others wait.

The supervisors end the gang when nothing was written for `stall_s`, half an hour by default. Until then a user can
investigate.
"""

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median, median_high
from typing import TypeVar

from backend.job.job import Job
from backend.runs.diagnosis.findings import Behind, Earlier, Hang, Idle, Stuck, Working
from backend.runs.records import Event, NodeSnapshot, Point
from backend.runs.states import EventKind
from backend.runs.store import metrics

Entry = TypeVar("Entry")

PATIENCE_S, PATIENCE_STEPS = 60.0, 10
"""A gang that has no step for the longer of both times makes no progress. Some steps save or evaluate."""
STUCK_S, STUCK_STEPS = 10.0, 3
"""The same limits when a process without progress is known."""
LOADING_S = 600.0
"""How long a gang may work without output before the first step, in a save and in an evaluation."""
QUIET_S = 120.0
"""Before the first step, the gang hangs when for this time no process was active and no log grew."""
SILENT_S = 15.0
WORKS_S = 15.0
"""A process that was active within this time counts as active."""
APART_S = 30.0
"""A node whose logs last grew this long before those of most nodes is reported."""
IDLE_PERCENT, BUSY_PERCENT = 10, 50
"""Ranks that wait in a collective keep their GPU busy. The rank that they wait for does not."""
MOST = 8
"""More differing ranks than this are not the cause."""


def find_hang(
    connection: sqlite3.Connection,
    run: str,
    attempt: int,
    *,
    job: Job,
    last: Point | None,
    step_s: float | None,
    nodes: Sequence[NodeSnapshot],
    history: Sequence[Event],
    now: float,
) -> Hang | None:
    """Return the hang; None while steps arrive, and while node 0 cannot be read, because the steps are read from it.

    `last`: the newest step of rank 0, its time by our clock. `step_s`: the usual time of a step.
    """
    if nodes and nodes[0].state == "unseen":
        return None
    nodes = [node for node in nodes if node.state != "unseen"]
    stuck = _stuck(nodes, history, attempt)
    newest = last if last is not None and last.attempt == attempt else None
    wrote = [node.wrote for node in nodes if node.wrote is not None]
    if newest is None and not wrote and not stuck:
        return None
    since = newest.time if newest else min((p.since for p in stuck), default=_started(history, attempt, now))
    due = newest is not None and is_due(job, newest)
    quiet_since = since if newest or _is_stopped(stuck) else max([since, *wrote])
    least_s, may_work = _limits(stuck, step_s, has_step=newest is not None, is_due=due)
    worked = _worked(nodes, job)
    is_idle = _nobody_works(worked, now - least_s)
    if now - quiet_since < least_s or (may_work and now - quiet_since < LOADING_S and not is_idle):
        return None
    return Hang(
        since=since,
        step=newest.step if newest else None,
        step_s=step_s if newest else None,
        ends_at=min(wrote, default=since) + job.stall_s,
        is_due=due and not is_idle,
        wrote=max(wrote, default=None),
        stuck=stuck,
        silent=_silent(nodes),
        behind=_behind(metrics.newest_of_ranks(connection, run, attempt, ranks=job.world_size), job),
        earlier=() if newest else _earlier(nodes),
        working=_working(worked, job, now),
        idle=_idle(nodes),
    )


def _is_stopped(stuck: Sequence[Stuck]) -> bool:
    """Return whether a process without progress does not just wait for a disk (state D)."""
    return any(state != "D" for process in stuck for _, _, state, *_ in process.processes)


def _limits(stuck: Sequence[Stuck], step_s: float | None, *, has_step: bool, is_due: bool) -> tuple[float, bool]:
    """Return how long a gang may be quiet, and whether it may be quiet for LOADING_S while it works."""
    if _is_stopped(stuck):
        return patience_s(step_s, is_stuck=True), False
    if not has_step:
        return QUIET_S, True
    return patience_s(step_s, is_stuck=bool(stuck) and not is_due), is_due


def is_due(job: Job, point: Point) -> bool:
    """Return whether a save or an evaluation follows the step, which may take long. The last step is saved too."""
    pauses = (job.training.save_steps, job.training.eval_steps, point.total_steps)
    return any(every and point.step % every == 0 for every in pauses)


def _started(history: Sequence[Event], attempt: int, now: float) -> float:
    """Return when all nodes of the attempt were up."""
    return next((e.time for e in history if e.kind is EventKind.STARTED and e.attempt == attempt), now)


def _worked(nodes: Sequence[NodeSnapshot], job: Job) -> dict[tuple[int, int | None], float]:
    """Return (node, global rank) -> when it was last active, or waited for files.

    Ranks with a busy GPU are left out, because a GPU that waits in a collective is busy too. torchrun (None) counts
    only before it has ranks.
    """
    worked = {}
    for node in nodes:
        first = node.rank * job.cluster.gpus_per_node
        busy = {gpu["index"] + first for gpu in node.gpus if gpu.get("utilization", 0) >= BUSY_PERCENT}
        ranks = [entry for entry in node.worked if entry[0] is not None] or node.worked
        worked.update({(node.rank, rank): when for rank, when in ranks if rank not in busy})
    return worked


def _nobody_works(worked: Mapping[tuple[int, int | None], float], since: float) -> bool:
    """Return whether it is known that no process has been active since then."""
    return bool(worked) and max(worked.values()) <= since


def patience_s(step_s: float | None, *, is_stuck: bool = False) -> float:
    """Return how long a gang with steps of `step_s` may go without one."""
    shortest_s, steps = (STUCK_S, STUCK_STEPS) if is_stuck else (PATIENCE_S, PATIENCE_STEPS)
    return max(shortest_s, steps * (step_s or 0.0))


def _stuck(nodes: Sequence[NodeSnapshot], history: Sequence[Event], attempt: int) -> tuple[Stuck, ...]:
    reported = {e.rank: e.time for e in history if e.kind is EventKind.NODE_STUCK and e.attempt == attempt}
    return tuple(
        Stuck(node=node.rank, processes=node.stuck, since=reported[node.rank])
        for node in nodes
        if node.stuck and node.rank in reported
    )


def _silent(nodes: Sequence[NodeSnapshot]) -> tuple[int, ...]:
    """Return the few nodes without a heartbeat for some time."""
    return _unless_many([n.rank for n in nodes if n.heartbeat_age_s is None or n.heartbeat_age_s > SILENT_S])


def _behind(points: Sequence[Point], job: Job) -> tuple[Behind, ...]:
    """Return the few ranks whose newest step is before that of most ranks."""
    if not points:
        return ()
    usual = Counter(point.step for point in points).most_common(1)[0][0]
    behind = [point for point in points if point.step < usual]
    size = job.cluster.gpus_per_node
    return tuple(
        Behind(rank=point.rank, node=point.rank // size, step=point.step, usual=usual) for point in _unless_many(behind)
    )


def _earlier(nodes: Sequence[NodeSnapshot]) -> tuple[Earlier, ...]:
    """Return the few nodes whose logs ended before those of most nodes."""
    wrote = [(node.rank, node.wrote) for node in nodes if node.wrote is not None]
    usual = median_high([when for _, when in wrote]) if wrote else 0.0
    return tuple(
        Earlier(node=rank, wrote=when, usual=usual)
        for rank, when in _unless_many([entry for entry in wrote if entry[1] < usual - APART_S])
    )


def _working(worked: Mapping[tuple[int, int | None], float], job: Job, now: float) -> tuple[Working, ...]:
    """Return the few ranks that work while most wait. Ranks with a busy GPU are not known to work."""
    working = [(node, rank) for (node, rank), when in worked.items() if rank is not None and now - when < WORKS_S]
    return (
        tuple(Working(node=node, rank=rank) for node, rank in _unless_many(working))
        if 2 * len(working) < job.world_size
        else ()
    )


def _idle(nodes: Sequence[NodeSnapshot]) -> tuple[Idle, ...]:
    """Return the few GPUs that are idle while most are busy."""
    gpus = [(node.rank, gpu) for node in nodes for gpu in node.gpus]
    shares = [(rank, gpu["index"], gpu["utilization"]) for rank, gpu in gpus if "utilization" in gpu]
    if not shares or median(share for _, _, share in shares) < BUSY_PERCENT:
        return ()
    return tuple(
        Idle(node=rank, gpu=index)
        for rank, index, share in _unless_many([entry for entry in shares if entry[2] < IDLE_PERCENT])
    )


def _unless_many(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple(entries) if len(entries) <= MOST else ()
