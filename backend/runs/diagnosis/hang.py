"""What can be said of a gang that makes no progress, while it still runs: since when, and who the others wait for.

The supervisors end it when nothing was written for `stall_s`, half an hour by default; until then somebody may look.
"""

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median, median_high
from typing import Any

from backend.job.job import Job
from backend.runs.diagnosis.findings import Behind, Earlier, Idle, Standstill, Stuck, Working
from backend.runs.records import Event, NodeSnapshot, Point
from backend.runs.states import EventKind
from backend.runs.store import metrics

PATIENCE_S, PATIENCE_STEPS = 60.0, 10
"""Without a step for both, the gang stands still: steps differ, and some save or evaluate."""
STUCK_S, STUCK_STEPS = 10.0, 3
"""The same where a process is known to stand still."""
LOADING_S = 600.0
"""Before the first step, in a save and in an evaluation a gang may work for so long without a word."""
QUIET_S = 120.0
"""Before the first step it stands still when for so long nobody has worked, nor written to a log."""
SILENT_S = 15.0
WORKS_S = 15.0
"""Who was at work within this time still is, as far as heartbeats tell."""
APART_S = 30.0
"""Logs that ended so much earlier than others' ended elsewhere."""
IDLE_PERCENT, BUSY_PERCENT = 10, 50
"""Ranks that wait in a collective keep their GPU busy; the one they wait for does not."""
MOST = 8
"""More that differ than this, and it is not they who hold up the others."""


def standstill(
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
) -> Standstill | None:
    """None while steps come in. `last`: the newest step of rank 0, its time by our clock; `step_s`: what is usual."""
    stuck = _stuck(nodes, history, attempt)
    newest = last if last is not None and last.attempt == attempt else None
    since = newest.time if newest else min((one.since for one in stuck), default=_started(history, attempt, now))
    due = newest is not None and is_due(job, newest)
    wrote = [node.wrote for node in nodes if node.wrote is not None]
    worked = _worked(nodes, job)
    quiet_s, least_s, may_work = now - since, patience_s(step_s, is_stuck=bool(stuck) and not due), due
    if any(state != "D" for one in stuck for _, _, state, *_ in one.processes):
        least_s, may_work = patience_s(step_s, is_stuck=True), False
    elif newest is None:
        quiet_s, least_s, may_work = now - max([since, *wrote]), QUIET_S, True
        if not wrote and not stuck:
            return None
    is_idle = _nobody_works(worked, now - least_s)
    if quiet_s < least_s or (may_work and quiet_s < LOADING_S and not is_idle):
        return None
    return Standstill(
        since=since,
        step=newest.step if newest else None,
        step_s=step_s if newest else None,
        ends_at=min(wrote, default=since) + job.stall_s,
        is_due=due and not is_idle,
        wrote=max(wrote, default=None),
        stuck=stuck,
        silent=_few([node.rank for node in nodes if node.heartbeat_age_s is None or node.heartbeat_age_s > SILENT_S]),
        behind=_behind(metrics.newest_of_ranks(connection, run, attempt, ranks=job.world_size), job),
        earlier=() if newest else _earlier(nodes),
        working=_working(worked, job, now),
        idle=_idle(nodes),
    )


def is_due(job: Job, point: Point) -> bool:
    """Whether a save or an evaluation follows on the step, which may take long; the last one is saved, too."""
    pauses = (job.training.save_steps, job.training.eval_steps, point.total_steps)
    return any(every and point.step % every == 0 for every in pauses)


def _started(history: Sequence[Event], attempt: int, now: float) -> float:
    """When all nodes of the attempt were up."""
    return next((e.time for e in history if e.kind is EventKind.STARTED and e.attempt == attempt), now)


def _worked(nodes: Sequence[NodeSnapshot], job: Job) -> dict[tuple[int, int | None], float]:
    """(node, global rank) -> when it was last at work, or waited for files. Not those whose GPU is busy, as a GPU that
    waits in a collective is; and torchrun (None) only where it has no ranks yet.
    """
    found = {}
    for node in nodes:
        first = node.rank * job.cluster.gpus_per_node
        busy = {gpu["index"] + first for gpu in node.gpus if gpu.get("utilization", 0) >= BUSY_PERCENT}
        ranks = [one for one in node.worked if one[0] is not None] or node.worked
        found.update({(node.rank, rank): when for rank, when in ranks if rank not in busy})
    return found


def _nobody_works(worked: Mapping[Any, float], since: float) -> bool:
    """Whether it is known that somebody waits and nobody has been at work since then."""
    return bool(worked) and max(worked.values()) <= since


def patience_s(step_s: float | None, *, is_stuck: bool = False) -> float:
    """How long a gang whose steps take `step_s` may go without one."""
    least, steps = (STUCK_S, STUCK_STEPS) if is_stuck else (PATIENCE_S, PATIENCE_STEPS)
    return max(least, steps * (step_s or 0.0))


def _stuck(nodes: Sequence[NodeSnapshot], history: Sequence[Event], attempt: int) -> tuple[Stuck, ...]:
    told = {e.rank: e.time for e in history if e.kind is EventKind.NODE_STUCK and e.attempt == attempt}
    return tuple(
        Stuck(node=node.rank, processes=node.stuck, since=told[node.rank])
        for node in nodes
        if node.stuck and node.rank in told
    )


def _behind(points: Sequence[Point], job: Job) -> tuple[Behind, ...]:
    """The few ranks whose newest step lies before that of most."""
    if not points:
        return ()
    usual = Counter(point.step for point in points).most_common(1)[0][0]
    found = [point for point in points if point.step < usual]
    size = job.cluster.gpus_per_node
    return tuple(Behind(rank=one.rank, node=one.rank // size, step=one.step, usual=usual) for one in _few(found))


def _earlier(nodes: Sequence[NodeSnapshot]) -> tuple[Earlier, ...]:
    """The few nodes whose logs ended before those of most."""
    wrote = [(node.rank, node.wrote) for node in nodes if node.wrote is not None]
    usual = median_high([when for _, when in wrote]) if wrote else 0.0
    return tuple(
        Earlier(node=rank, wrote=when, usual=usual)
        for rank, when in _few([one for one in wrote if one[1] < usual - APART_S])
    )


def _working(worked: Mapping[tuple[int, int | None], float], job: Job, now: float) -> tuple[Working, ...]:
    """The few ranks that are at work while most wait, for all that is known of those whose GPU is busy."""
    found = [(node, rank) for (node, rank), when in worked.items() if rank is not None and now - when < WORKS_S]
    return tuple(Working(node=node, rank=rank) for node, rank in _few(found)) if 2 * len(found) < job.world_size else ()


def _idle(nodes: Sequence[NodeSnapshot]) -> tuple[Idle, ...]:
    """The few GPUs that do nothing while most are busy."""
    told = [(node.rank, gpu) for node in nodes for gpu in node.gpus]
    known = [(rank, gpu["index"], gpu["utilization"]) for rank, gpu in told if "utilization" in gpu]
    if not known or median(share for _, _, share in known) < BUSY_PERCENT:
        return ()
    return tuple(Idle(node=rank, gpu=index) for rank, index, share in _few([k for k in known if k[2] < IDLE_PERCENT]))


def _few(found: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(found) if len(found) <= MOST else ()
