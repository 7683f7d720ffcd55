"""What the steps of a run tell that somebody should hear of while it still runs."""

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.jobs import ledger, rising, series
from backend.jobs.states import EventKind

Told = tuple[EventKind, Mapping[str, Any]]
"""An event and its detail."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """New steps of one global rank, which are in the store already."""

    run: str
    attempt: int
    rank: int
    rows: Sequence[Mapping[str, Any]]


def of_steps(connection: sqlite3.Connection, steps: Steps) -> Iterator[Told]:
    """What they tell that has not been told before; each is to be recorded before the next is asked for."""
    yield from _not_finite(connection, steps)
    if steps.rank == 0:
        for name in rising.EVENTS:
            yield from _risen(connection, steps, name)


def _not_finite(connection: sqlite3.Connection, steps: Steps) -> Iterator[Told]:
    """Not of a gradient norm: where fp16's scale is too large it is infinite, and the step is left out."""
    lost = next((row for row in steps.rows if not math.isfinite(row.get("loss") or 0.0)), None)
    if lost and not ledger.has_event(connection, steps.run, steps.attempt, EventKind.LOSS_NOT_FINITE):
        yield EventKind.LOSS_NOT_FINITE, {"step": lost["step"], "loss": str(lost["loss"])}


def _risen(connection: sqlite3.Connection, steps: Steps, name: str) -> Iterator[Told]:
    if all(row.get(name) is None for row in steps.rows):
        return
    kind, step = rising.EVENTS[name], max(row["step"] for row in steps.rows)
    told = ledger.newest_detail(connection, steps.run, steps.attempt, kind)
    if told and step < told["step"] + rising.AGAIN_STEPS:
        return
    count = rising.BEFORE + rising.NEWEST
    values = series.newest_logged(connection, steps.run, steps.attempt, name, count=count)
    if found := rising.rise(values, rising.LEAST_SHARE[name]):
        newest, usual = found
        yield kind, {"step": step, name: newest, "usual": usual}
