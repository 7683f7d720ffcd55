"""Alerts computed from the steps of a run while it trains."""

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.job.problems import Problem, ProblemsError
from backend.runs.diagnosis import grad_norms, loss_spikes
from backend.runs.diagnosis.first_steps import outside_interval
from backend.runs.records import problem_to_json
from backend.runs.states import EventKind
from backend.runs.store import metrics, run_store

GIB = 1 << 30
LEAST_CHECKPOINTS = 2
"""An alert is due when the disk has room for fewer checkpoints."""
_ROOM = ("checkpoint_bytes", "free_bytes", "results_inode")
Alert = tuple[EventKind, Mapping[str, Any]]
"""An event and its detail."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """New steps of one global rank, which are in the store already."""

    run: str
    attempt: int
    node: int
    rank: int
    rows: Sequence[Mapping[str, Any]]
    first: int | None
    """The first stored step of the rank in the attempt; None if no step is stored."""


def of_steps(connection: sqlite3.Connection, steps: Steps) -> Iterator[Alert]:
    """Yield the alerts of these steps that are not recorded yet. The caller records each before it takes the next."""
    yield from _not_finite(connection, steps)
    yield from _nothing_trained(connection, steps)
    if steps.rank == 0:
        for name in loss_spikes.EVENTS:
            yield from _risen(connection, steps, name)
        yield from _norm_not_finite(connection, steps)
    yield from _disk_low(connection, steps)
    yield from _retries(connection, steps)
    if steps.first is None:
        return
    for detail in outside_interval(connection, steps.run, steps.attempt, steps.rank, steps.rows, steps.first):
        yield EventKind.OUTSIDE_INTERVAL, detail


def _not_finite(connection: sqlite3.Connection, steps: Steps) -> Iterator[Alert]:
    """Report a loss that is not finite."""
    lost = next((row for row in steps.rows if not math.isfinite(row.get("loss") or 0.0)), None)
    if lost and not run_store.has_event(connection, steps.run, steps.attempt, EventKind.LOSS_NOT_FINITE):
        yield EventKind.LOSS_NOT_FINITE, {"step": lost["step"], "loss": str(lost["loss"])}


def _norm_not_finite(connection: sqlite3.Connection, steps: Steps) -> Iterator[Alert]:
    """Report gradients that are not finite, if no loss scale explains them. A loss that is not finite says more."""
    lost = [row["step"] for row in steps.rows if not math.isfinite(row.get("grad_norm") or 0.0)]
    if not lost or _is_recorded(connection, steps, EventKind.LOSS_NOT_FINITE):
        return
    alerted = run_store.newest_detail(connection, steps.run, steps.attempt, EventKind.GRAD_NORM_NOT_FINITE)
    # "step" is the start of the row of norms. Events of older versions have no "newest".
    if alerted and lost[-1] < alerted.get("newest", alerted["step"]) + loss_spikes.AGAIN_STEPS:
        return
    precision = _precision(connection, steps.run)
    is_fp16 = precision in ("fp16", None)
    if found := _norms_not_finite(connection, steps, lost[0], is_fp16=is_fp16):
        first, norm, number = found
        code = "gradients_not_finite_fp16" if is_fp16 else "gradients_not_finite"
        why = Problem(code=code, values={} if is_fp16 else {"precision": precision})
        detail = {"step": first, "newest": lost[-1], "grad_norm": str(norm), "count": number}
        yield EventKind.GRAD_NORM_NOT_FINITE, {**detail, "problem": problem_to_json(why)}


def _norms_not_finite(
    connection: sqlite3.Connection, steps: Steps, since: int, *, is_fp16: bool
) -> tuple[int, float, int] | None:
    """Return what grad_norms.not_finite finds at step `since` or later. The whole row of norms is read."""
    count = len(steps.rows) + grad_norms.AT_START
    while True:
        norms = metrics.newest_steps_of(connection, steps.run, steps.attempt, "grad_norm", count=count)
        found = grad_norms.not_finite(norms, since, is_fp16=is_fp16)
        if not found or found[0] > norms[0][0] or len(norms) < count:
            return found
        count *= 2


def _precision(connection: sqlite3.Connection, run: str) -> str | None:
    """Return the precision of the run's job; None for a run that was started elsewhere and has no job."""
    try:
        return run_store.run_job(run_store.run_row(connection, run)["job"]).training.precision
    except ProblemsError:
        return None


def _nothing_trained(connection: sqlite3.Connection, steps: Steps) -> Iterator[Alert]:
    """Report a loss of exactly 0, and data whose first rows have only masked labels, once each in an attempt."""
    for row in steps.rows:
        masked, looked = row.get("masked_rows") or (0, 0)
        if 0 < looked == masked and not _is_recorded(connection, steps, EventKind.LABELS_MASKED):
            yield EventKind.LABELS_MASKED, {"step": row["step"], "count": masked}
        if row.get("loss") == 0.0 and not _is_recorded(connection, steps, EventKind.LOSS_ZERO):
            yield EventKind.LOSS_ZERO, {"step": row["step"]}


def _is_recorded(connection: sqlite3.Connection, steps: Steps, kind: EventKind) -> bool:
    return run_store.has_event(connection, steps.run, steps.attempt, kind)


def _risen(connection: sqlite3.Connection, steps: Steps, name: str) -> Iterator[Alert]:
    if all(row.get(name) is None for row in steps.rows):
        return
    kind, step = loss_spikes.EVENTS[name], max(row["step"] for row in steps.rows)
    alerted = run_store.newest_detail(connection, steps.run, steps.attempt, kind)
    if alerted and step < alerted["step"] + loss_spikes.AGAIN_STEPS:
        return
    count = loss_spikes.BEFORE + loss_spikes.NEWEST
    values = metrics.newest_logged(connection, steps.run, steps.attempt, name, count=count)
    if rise := loss_spikes.rise(values, loss_spikes.LEAST_SHARE[name]):
        newest, usual = rise
        yield kind, {"step": step, name: newest, "usual": usual}


def _disk_low(connection: sqlite3.Connection, steps: Steps) -> Iterator[Alert]:
    """Report a disk with little room: once for all nodes that share it, and again when one checkpoint less fits."""
    row = next((row for row in reversed(steps.rows) if all(type(row.get(name)) is int for name in _ROOM)), None)
    if row is None or row["checkpoint_bytes"] <= 0:
        return
    room = row["free_bytes"] // row["checkpoint_bytes"]
    if room >= LEAST_CHECKPOINTS:
        return
    history = run_store.events(connection, steps.run)
    recorded = [
        event.detail for event in history if event.kind is EventKind.DISK_LOW and event.attempt == steps.attempt
    ]
    if not any(detail["inode"] == row["results_inode"] and detail["room"] <= room for detail in recorded):
        sizes = {"free_gib": row["free_bytes"] / GIB, "checkpoint_gib": row["checkpoint_bytes"] / GIB}
        yield EventKind.DISK_LOW, {"step": row["step"], "room": room, "inode": row["results_inode"], **sizes}


def _retries(connection: sqlite3.Connection, steps: Steps) -> Iterator[Alert]:
    """Report repeated allocations, once per node. torch's allocator found no room, emptied its cache and tried again:
    num_alloc_retries in https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html.
    """
    row = next((row for row in steps.rows if row.get("alloc_retries")), None)
    if row and not run_store.has_event(connection, steps.run, steps.attempt, EventKind.ALLOC_RETRIES, steps.node):
        yield EventKind.ALLOC_RETRIES, {"step": row["step"], "of_rank": steps.rank, "retries": row["alloc_retries"]}
