"""What page ticks read: one look at the store an interval however many tabs are open, and each run's curves."""

import logging
import math
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from app.monitor import curves
from app.monitor.json_parts import to_json
from app.monitor.shared_answers import Shared
from backend.job.problems import ProblemsError
from backend.runs.api import State
from backend.runs.controller import Controller
from backend.runs.database import Database, Reader
from backend.runs.records import RunSnapshot, RunSummary

LOOK_S = 1.0
"""Two ticks within this time see the same snapshot."""
RUNS_KEPT = 16
"""Runs whose snapshot stays in memory."""
CURVES_KEPT = 64
"""Answers about curves that stay in memory, a tenth of a megabyte each. None gets old: it is of one state."""

_log = logging.getLogger(__name__)


class RunCache:
    """Snapshots and curves of runs for any number of threads; every answer is at most LOOK_S old."""

    def __init__(self, controller: Controller, database: Database, clock: Callable[[], float]) -> None:
        self._controller = controller
        self._database = database
        self._runs: Shared[list[RunSummary]] = Shared(clock, fresh_s=LOOK_S, kept=1)
        self._snapshots: Shared[RunSnapshot] = Shared(clock, fresh_s=LOOK_S, kept=RUNS_KEPT)
        self._curves: Shared[str] = Shared(clock, fresh_s=math.inf, kept=CURVES_KEPT)
        self._lock = threading.Lock()
        self._taking_in: set[str] = set()

    def runs(self) -> list[RunSummary]:
        """All runs, newest first."""
        return self._runs.get("", lambda: sorted(self._controller.runs(), key=lambda run: -run.created))

    def run(self, run_id: str) -> RunSnapshot:
        """One run. Raises ProblemsError(unknown_run)."""
        return self._snapshots.get(run_id, lambda: self._controller.snapshot(run_id))

    def forget(self, run_id: str) -> None:
        """Look again at the next call: something was done to the run."""
        self._snapshots.forget(run_id)
        self._runs.forget("")

    def curves(self, run_id: str, generation: int | None, seq: int | None) -> str | None:
        """`curves.part` of a run as JSON; None if the browser is up to date."""
        upto = self._state(run_id)
        has = seq if generation == upto.generation else None
        if has == upto.seq:
            return None
        return self._curves.get(
            (run_id, upto, has), lambda: self._read(lambda reader: curves.part(reader, run_id, upto.generation, has))
        )

    def detail(self, run_id: str, first: int, last: int) -> str:
        """`curves.detail` of a run as JSON."""
        key = (run_id, self._state(run_id), first, last)
        return self._curves.get(key, lambda: self._read(lambda reader: curves.detail(reader, run_id, first, last)))

    def _state(self, run_id: str) -> State:
        with self._database.read() as reader:
            upto = reader.curve_state(run_id)
        if upto.is_behind:
            self._take_in(run_id)
        return upto

    def _read(self, read: Callable[[Reader], dict[str, Any]]) -> str:
        with self._database.read() as reader:
            return to_json(read(reader))

    def _take_in(self, run_id: str) -> None:
        """Process the points that an older version stored, in the background; the curve grows meanwhile."""
        with self._lock:
            if run_id in self._taking_in:
                return
            self._taking_in.add(run_id)
        threading.Thread(target=self._work, args=(run_id,), name=f"curves {run_id}", daemon=True).start()

    def _work(self, run_id: str) -> None:
        try:
            while self._database.process_points(run_id):
                pass
        except ProblemsError as error:
            _log.warning("the curves of %s are not complete: %s", run_id, error)
        finally:
            with self._lock:
                self._taking_in.discard(run_id)


@lru_cache(maxsize=8)
def run_cache_of(controller: Controller, database: Database, clock: Callable[[], float]) -> RunCache:
    """The one instance of a controller, for all languages."""
    return RunCache(controller, database, clock)
