"""Finds a node that makes all others wait, if a spare in its place is worth a restart.

diagnosis/straggler.py measures: the steps take longer than before, and a GPU whose clock is reduced, or a much higher
load, is on one node only. Waiting in front of a slow node costs `seconds more a step x steps that are left`. A restart
costs what this attempt needed from its start to its first step. The gang is ended only if the first is larger.
"""

import sqlite3
from collections.abc import Callable

from backend.job.problems import Problem
from backend.runs.diagnosis.findings import Straggler
from backend.runs.diagnosis.straggler import is_slower
from backend.runs.records import Event, RunSnapshot
from backend.runs.states import EventKind
from backend.runs.store import attempts, metrics, run_store
from backend.runs.store.store import Store
from backend.runs.supervise import restart
from backend.runs.supervise.gang_rules import Timing
from backend.runs.view.snapshot import snapshot


class SlowNodeWatch:
    """Looks for a slow node of one running attempt. One thread calls `find` in a loop."""

    def __init__(
        self,
        store: Store,
        run: str,
        attempt: int,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        timing: Timing,
    ) -> None:
        self._store = store
        self._run = run
        self._attempt = attempt
        self._clock = clock
        self._monotonic = monotonic
        self._timing = timing
        self._has_spares: bool | None = None
        """Whether the job has spares at all; None before the first look."""
        self._next_look = 0.0
        self._suspect: tuple[int, float] | None = None
        """The rank of the node that was slow at every look since this time."""

    def recorded(self) -> Event | None:
        """Return the event that a spare is to replace a node of this attempt."""
        with self._store.read() as connection:
            events = run_store.events_of_attempt(connection, self._run, self._attempt, EventKind.NODE_SLOW)
        return events[0] if events else None

    def find(self) -> tuple[int, Problem] | None:
        """Return the rank and the problem of a node that a spare should replace now; None without one."""
        now = self._monotonic()
        if now < self._next_look or self._has_spares is False:
            return None
        self._next_look = now + self._timing.slow_look_s
        with self._store.read() as connection:
            if self._has_spares is None:
                self._has_spares = bool(run_store.job_of(connection, self._run).cluster.spares)
            # All nodes are read only if the steps are slow.
            if not self._has_spares or not is_slower(connection, self._run, self._attempt):
                self._suspect = None
                return None
            if not restart.can_replace(connection, self._run, self._attempt):
                return None
            shown = snapshot(connection, self._run, self._clock())
            is_worth_it = _is_worth_it(connection, shown)
        rank = None if shown.slowdown is None or not is_worth_it else slow_node(shown.slowdown)
        if rank is None or shown.slowdown is None:
            self._suspect = None
            return None
        if self._suspect is None or self._suspect[0] != rank:
            self._suspect = (rank, now)
        if now - self._suspect[1] < self._timing.slow_after_s:
            return None
        return rank, problem_of(shown.slowdown, rank, shown.nodes[rank].address)


def slow_node(slow: Straggler) -> int | None:
    """Return the rank of the only node that differs from the others; None without one, or if several differ."""
    ranks = {gpu.node for gpu in slow.held} | {node.node for node in slow.loaded}
    return ranks.pop() if len(ranks) == 1 else None


def problem_of(slow: Straggler, rank: int, address: str) -> Problem:
    """Return the problem of the slow node: node_slow_gpu, or node_slow_load."""
    values: dict[str, object] = {
        "node": address,
        "step": slow.since_step,
        "step_s": f"{slow.step_s:.3g}",
        "usual_s": f"{slow.usual_s:.3g}",
        "percent": round(100 * (slow.step_s / slow.usual_s - 1)),
    }
    if slow.held:
        gpus = ", ".join(str(gpu.gpu) for gpu in slow.held)
        return Problem(code="node_slow_gpu", node=address, values={**values, "gpu": gpus})
    load = next(node for node in slow.loaded if node.node == rank)
    loads = {"load": round(load.load), "usual_load": round(load.usual)}
    return Problem(code="node_slow_load", node=address, values={**values, **loads})


def _is_worth_it(connection: sqlite3.Connection, shown: RunSnapshot) -> bool:
    """Return whether the rest of the run loses more time to the slow node than a restart takes."""
    slow, first = shown.slowdown, metrics.first_points(connection, shown.id, shown.attempt, count=1)
    history = run_store.events(connection, shown.id)
    began = [event.time for event in history if event.kind is EventKind.STARTING and event.attempt == shown.attempt]
    if slow is None or shown.step is None or shown.total_steps is None or not first or not began:
        return False
    lost_s = (shown.total_steps - shown.step) * (slow.step_s - slow.usual_s)
    offset_s = attempts.nodes(connection, shown.id, shown.attempt)[0].clock_offset_s
    return lost_s > first[0].time - offset_s - began[-1]
