"""Cache of run snapshots and curves. Many tabs share one read of the store per interval."""

import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from app.monitor import curves, metrics
from app.monitor.downsample import LIMIT
from app.monitor.json_parts import to_json
from app.monitor.metric_columns import MetricColumns, Values
from app.monitor.shared_answers import Shared
from backend.job.problems import ProblemsError
from backend.runs.api import Metric, State
from backend.runs.controller import Controller
from backend.runs.database import Database, Reader
from backend.runs.records import RunSnapshot, RunSummary

SNAPSHOT_S = 1.0
"""Polls within this time get the same snapshot."""
RUNS_KEPT = 16
"""Maximum runs whose snapshots stay in memory."""
CURVES_KEPT = 256
"""Maximum curve answers in memory, 0.1 MB each at most. They do not expire, because each belongs to one state."""

Columns = tuple[list[str], Mapping[str, Values]]
"""Names of all metrics, and run -> values of one of them."""

_log = logging.getLogger(__name__)


class RunCache:
    """Snapshots and curves of runs. Thread-safe. A snapshot is at most SNAPSHOT_S old."""

    def __init__(self, controller: Controller, database: Database, clock: Callable[[], float]) -> None:
        self._controller = controller
        self._database = database
        self._runs: Shared[list[RunSummary]] = Shared(clock, fresh_s=SNAPSHOT_S, size=1)
        self._snapshots: Shared[RunSnapshot] = Shared(clock, fresh_s=SNAPSHOT_S, size=RUNS_KEPT)
        self._curves: Shared[str] = Shared(clock, fresh_s=math.inf, size=CURVES_KEPT)
        self._column_values: Shared[Columns] = Shared(clock, fresh_s=SNAPSHOT_S, size=RUNS_KEPT)
        self._metrics: Shared[dict[str, Metric]] = Shared(clock, fresh_s=SNAPSHOT_S, size=RUNS_KEPT)
        self._columns = MetricColumns(database)
        self._lock = threading.Lock()
        self._processing: set[str] = set()

    def runs(self) -> list[RunSummary]:
        """Return all runs, newest first."""
        return self._runs.get("", lambda: sorted(self._controller.runs(), key=lambda run: -run.created))

    def columns(self, metric: str) -> Columns:
        """Return the names of all metrics, and the values of one of them for each run of the list."""
        runs = self.runs()
        return self._column_values.get(metric, lambda: (self._columns.names(), self._columns.values(runs, metric)))

    def run(self, run_id: str) -> RunSnapshot:
        """Return one run. Raises ProblemsError(unknown_run)."""
        return self._snapshots.get(run_id, lambda: self._controller.snapshot(run_id))

    def forget(self, run_id: str) -> None:
        """Delete the run's snapshot after an action, so that the next call reads it again."""
        self._snapshots.forget(run_id)
        self._runs.forget("")

    def curves(self, run_id: str, generation: int | None, seq: int | None, limit: int = LIMIT) -> str | None:
        """Return `curves.part` of a run as JSON. None if the browser is up to date."""
        state = self._state(run_id)
        known = seq if generation == state.generation else None
        if known == state.seq:
            return None
        read = lambda reader: curves.part(reader, run_id, state.generation, known, limit=limit)  # noqa: E731
        return self._curves.get((run_id, state, known, limit), lambda: self._read(read))

    def detail(self, run_id: str, first: int, last: int, names: Collection[str] = (), limit: int = LIMIT) -> str:
        """Return `curves.detail` of a run as JSON, and `metrics.detail` of some names."""
        known = self.metrics_of(run_id)
        shown = [known[name] for name in names if name in known]
        versions = tuple((metric.name, metric.version, metric.last_step) for metric in shown)

        def make(reader: Reader) -> dict[str, Any]:
            details = {metric.name: metrics.detail(reader, metric, first, last, limit=limit) for metric in shown}
            return {**curves.detail(reader, run_id, first, last, limit=limit), "metrics": details}

        key = (run_id, self._state(run_id), first, last, versions, limit)
        return self._curves.get(key, lambda: self._read(make))

    def metrics_of(self, run_id: str) -> dict[str, Metric]:
        """Return the logged metrics of a run, without values."""
        return self._metrics.get(run_id, lambda: self._read_metrics(run_id))

    def metric_values(self, run_id: str, have: metrics.Have, limit: int = LIMIT) -> dict[str, str]:
        """Return name -> JSON of the values that the browser lacks (`metrics.values`)."""
        known = self.metrics_of(run_id)
        answer = {}
        for name, mark in have.items():
            metric = known.get(name)
            if metric is not None and mark != (metric.version, metric.last_step):
                key = (run_id, name, metric.version, metric.last_step, mark, limit)
                answer[name] = self._curves.get(key, partial(self._read_values, metric, mark, limit))
        return answer

    def axis(self, run_id: str, step: int) -> str:
        """Return `metrics.axis` of a run at its newest step as JSON."""
        return self._curves.get((run_id, "axis", step), lambda: self._read(lambda r: metrics.axis(r, run_id)))

    def _read_values(self, metric: Metric, mark: tuple[int, int], limit: int) -> str:
        return self._read(lambda reader: metrics.values(reader, metric, *mark, limit=limit))

    def _read_metrics(self, run_id: str) -> dict[str, Metric]:
        with self._database.read() as reader:
            return reader.metrics(run_id)

    def _state(self, run_id: str) -> State:
        with self._database.read() as reader:
            state = reader.curve_state(run_id)
        if state.is_behind:
            self._process_points(run_id)
        return state

    def _read(self, read: Callable[[Reader], dict[str, Any]]) -> str:
        with self._database.read() as reader:
            return to_json(read(reader))

    def _process_points(self, run_id: str) -> None:
        """Process the points that an older version stored, in a thread. The curve grows meanwhile."""
        with self._lock:
            if run_id in self._processing:
                return
            self._processing.add(run_id)
        threading.Thread(target=self._process, args=(run_id,), name=f"curves {run_id}", daemon=True).start()

    def _process(self, run_id: str) -> None:
        try:
            while self._database.process_points(run_id):
                pass
        except ProblemsError as error:
            _log.warning("the curves of %s are not complete: %s", run_id, error)
        finally:
            with self._lock:
                self._processing.discard(run_id)
