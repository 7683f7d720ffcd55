"""What can be said of a gang that makes no progress, while it still runs: since when, and who the others wait for.

The supervisors end it when nothing was written for `stall_s`, half an hour by default; until then somebody may look.
"""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from backend.job.job import Job
from backend.jobs import series
from backend.jobs.records import Behind, Event, Idle, NodeSnapshot, Point, Standstill, Stuck
from backend.jobs.states import EventKind

PATIENCE_S, PATIENCE_STEPS = 60.0, 10
"""Without a step for both, the gang stands still: steps differ, and some save or evaluate."""
STUCK_S, STUCK_STEPS = 10.0, 3
"""The same where a process is known to stand still."""
LOADING_S = 600.0
"""Before the first step processes may wait for a file server; that is how a large model is loaded."""
SILENT_S = 15.0
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
    is_begun = last is not None and last.attempt == attempt
    since = last.time if last is not None and is_begun else min((one.since for one in stuck), default=now)
    step = last.step if last is not None and is_begun else None
    is_due = step is not None and any(every and step % every == 0 for every in _pauses(job))
    is_stopped = any(state != "D" for one in stuck for _, _, state, *_ in one.processes)
    least_s = LOADING_S if step is None and not is_stopped else 0.0
    if now - since < max(least_s, patience_s(step_s, is_stuck=is_stopped or (bool(stuck) and not is_due))):
        return None
    return Standstill(
        since=since,
        step=step,
        step_s=step_s if step is not None else None,
        ends_at=since + job.stall_s,
        is_due=is_due,
        stuck=stuck,
        silent=_few([node.rank for node in nodes if node.heartbeat_age_s is None or node.heartbeat_age_s > SILENT_S]),
        behind=_behind(series.newest_of_ranks(connection, run, attempt, ranks=job.world_size), job),
        idle=_idle(nodes),
    )


def patience_s(step_s: float | None, *, is_stuck: bool = False) -> float:
    """How long a gang whose steps take `step_s` may go without one."""
    least, steps = (STUCK_S, STUCK_STEPS) if is_stuck else (PATIENCE_S, PATIENCE_STEPS)
    return max(least, steps * (step_s or 0.0))


def _pauses(job: Job) -> tuple[int | None, int | None]:
    return job.training.save_steps, job.training.eval_steps


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


def _idle(nodes: Sequence[NodeSnapshot]) -> tuple[Idle, ...]:
    """The few GPUs that do nothing while most are busy."""
    shares = [(node.rank, gpu.get("index"), gpu.get("utilization")) for node in nodes for gpu in node.gpus]
    known = [(rank, index, share) for rank, index, share in shares if share is not None]
    if not known or median(share for _, _, share in known) < BUSY_PERCENT:
        return ()
    return tuple(Idle(node=rank, gpu=index) for rank, index, share in _few([k for k in known if k[2] < IDLE_PERCENT]))


def _few(found: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(found) if len(found) <= MOST else ()
