"""Records what happens to one attempt."""

from collections.abc import Callable

from backend.job.problems import Problem
from backend.runs.collect.node_records import Stopped
from backend.runs.records import problem_to_json
from backend.runs.states import EventKind
from backend.runs.store import attempts, run_store
from backend.runs.store.store import Store


class AttemptRecorder:
    """Appends events of one attempt to the store."""

    def __init__(self, store: Store, run: str, attempt: int, clock: Callable[[], float]) -> None:
        self.run = run
        self._store = store
        self._attempt = attempt
        self._clock = clock

    def record(
        self, kind: EventKind, *, rank: int | None = None, problem: Problem | None = None, **detail: object
    ) -> None:
        """Append an event. Raises StoreError if the store cannot be written."""
        values = dict(detail)
        if problem is not None:
            values["problem"] = problem_to_json(problem)
        self._store.write(
            lambda c: run_store.append(
                c, self.run, kind, time=self._clock(), attempt=self._attempt, rank=rank, detail=values
            )
        )

    def record_once(self, kind: EventKind, rank: int, problem: Problem | None = None) -> None:
        """Append an event of a node, unless the attempt has one of this kind already."""
        with self._store.read() as connection:
            is_recorded = run_store.has_event(connection, self.run, self._attempt, kind, rank)
        if not is_recorded:
            self.record(kind, rank=rank, problem=problem)

    def record_stop(self, rank: int, answer: Stopped) -> None:
        """Store what a node answered to a stop."""
        self._store.write(lambda c: attempts.set_stop(c, self.run, self._attempt, rank, answer))
        self.record(EventKind.NODE_STOPPED, rank=rank, left=answer["left"])
