"""What page ticks read: one look at the store an interval however many tabs are open, and each run's curves."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from app.monitor.curves import Curves, Reader
from backend.job.job import Job
from backend.jobs import ledger
from backend.jobs.controller import Controller
from backend.jobs.progress import step_tokens
from backend.jobs.records import Point, RunSnapshot, RunSummary
from backend.jobs.store import Store

T = TypeVar("T")

LOOK_S = 1.0
"""Two ticks within this time see the same snapshot."""
RUNS_KEPT = 16
"""Runs whose snapshot and curves stay in memory."""


class Watch:
    """Snapshots and curves of runs for any number of threads; every answer is at most LOOK_S old."""

    def __init__(self, controller: Controller, store: Store, clock: Callable[[], float]) -> None:
        self._controller = controller
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._snapshots: OrderedDict[str, tuple[float, object]] = OrderedDict()
        self._curves: OrderedDict[str, Curves] = OrderedDict()

    def runs(self) -> list[RunSummary]:
        """All runs, newest first."""
        return self._look("", lambda: sorted(self._controller.runs(), key=lambda run: -run.created))

    def run(self, run_id: str) -> RunSnapshot:
        """One run. Raises ProblemsError(unknown_run)."""
        return self._look(run_id, lambda: self._controller.snapshot(run_id))

    def forget(self, run_id: str) -> None:
        """Look again at the next call: something was done to the run."""
        with self._lock:
            self._snapshots.pop(run_id, None)
            self._snapshots.pop("", None)

    def curves(self, run_id: str, generation: int | None, seq: int | None) -> dict[str, object]:
        """`Curves.to_json` of a run, with the newest points taken in before."""
        with self._lock:
            curves = self._curves.get(run_id)
            if curves is None:
                curves = self._curves[run_id] = Curves(readers(self._job(run_id)))
            curves.add(self._controller.points(run_id, after=curves.seq))
            _trim(self._curves, run_id)
            return curves.to_json(generation, seq)

    def _job(self, run_id: str) -> Job:
        with self._store.read() as connection:
            return ledger.job_of(connection, run_id)

    def _look(self, key: str, read: Callable[[], T]) -> T:
        with self._lock:
            now = self._clock()
            kept = self._snapshots.get(key)
            if kept is None or not 0 <= now - kept[0] < LOOK_S:
                kept = self._snapshots[key] = (now, read())
                _trim(self._snapshots, key)
            return kept[1]  # type: ignore[return-value]


def readers(job: Job) -> dict[str, Reader]:
    """How each curve reads a point of a run of this job."""

    def tokens_per_s(point: Point) -> float | None:
        tokens = step_tokens(job, point)
        return tokens / point.step_s if tokens is not None and point.step_s else None

    return {
        "loss": lambda point: point.loss,
        "grad_norm": lambda point: point.grad_norm,
        "learning_rate": lambda point: point.learning_rate,
        "tokens_per_s": tokens_per_s,
        "step_s": lambda point: point.step_s,
    }


def _trim(kept: OrderedDict[str, T], newest: str) -> None:
    kept.move_to_end(newest)
    while len(kept) > RUNS_KEPT:
        kept.popitem(last=False)
