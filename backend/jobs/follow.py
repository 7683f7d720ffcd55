"""Follows one node of a run: polls its files, and knows since when the node answers or does not."""

import logging
import random
from collections.abc import Callable
from typing import Protocol

from backend.cluster.node import Node, NodeError
from backend.job.problems import Problem
from backend.jobs import ledger
from backend.jobs.collect import Polled
from backend.jobs.records import problem_to_json
from backend.jobs.states import EventKind
from backend.jobs.store import Store, StoreError

_log = logging.getLogger(__name__)

POLL_S = 1.0
LONGEST_BACK_OFF_S = 15.0
TOLERATED_FAILURES = 2
"""One failed poll is told to nobody: connections are renewed by the next."""


class Reader(Protocol):
    """What reads a node."""

    def poll(self, node: Node) -> Polled:
        """Read what is new and store it. Raises NodeError and StoreError."""


class Follower:
    """Polls one node. `step` is called in a loop by one thread; the rest may be read by others.

    `report` is called with why the node became unreachable, and with None when it answers again.
    """

    def __init__(
        self,
        collector: Reader,
        connect: Callable[[], Node],
        report: Callable[[Problem | None], None],
        *,
        monotonic: Callable[[], float],
        poll_s: float = POLL_S,
    ) -> None:
        self._collector = collector
        self._connect = connect
        self._report = report
        self._monotonic = monotonic
        self._poll_s = poll_s
        self._failures = 0
        self._up_since: float | None = None
        self._down_since: float | None = None
        self._heard = monotonic()
        self.ended = False

    def step(self) -> float:
        """Poll once; the seconds to wait until the next. Afterwards `ended` says whether there is a next."""
        try:
            polled = self._collector.poll(self._connect())
        except NodeError as error:
            return self._note_failure(error)
        except StoreError as error:
            _log.error("collected rows could not be stored: %s", error)
            return LONGEST_BACK_OFF_S
        self._note_success()
        if polled.heartbeat:
            self._heard = self._monotonic()
        self.ended = polled.ended
        return 0.0 if polled.more else self._poll_s

    def link(self) -> tuple[float | None, float | None, float]:
        """(up_s, down_s, silent_s) of gang.NodeView."""
        now = self._monotonic()
        up, down = self._up_since, self._down_since
        return (None if up is None else now - up, None if down is None else now - down, now - self._heard)

    def _note_success(self) -> None:
        if self._failures >= TOLERATED_FAILURES:
            self._report(None)
        self._failures = 0
        self._down_since = None
        if self._up_since is None:
            self._up_since = self._monotonic()

    def _note_failure(self, error: NodeError) -> float:
        self._failures += 1
        self._up_since = None
        if self._down_since is None:
            self._down_since = self._monotonic()
        if self._failures == TOLERATED_FAILURES:
            self._report(error.problem)
        back_off = min(LONGEST_BACK_OFF_S, self._poll_s * (1 << min(self._failures - 1, 10)))
        return back_off * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, no secret


def tell_link(store: Store, run: str, attempt: int, rank: int, problem: Problem | None, now: float) -> None:
    """Record what a follower reports of its node."""
    kind = EventKind.NODE_REACHABLE if problem is None else EventKind.NODE_UNREACHABLE
    detail = {} if problem is None else {"problem": problem_to_json(problem)}
    store.write(lambda c: ledger.append(c, run, kind, time=now, attempt=attempt, rank=rank, detail=detail))
