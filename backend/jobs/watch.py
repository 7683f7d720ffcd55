"""Watches one run: a thread a node that collects, and one that leads the gang."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from backend.cluster.node import Node
from backend.jobs import ledger
from backend.jobs.collect import Collector
from backend.jobs.connections import Connections
from backend.jobs.follow import LONGEST_BACK_OFF_S, Follower, LinkReport
from backend.jobs.launch import ranks_of
from backend.jobs.lead import Lead, Timing
from backend.jobs.records import problem_to_json
from backend.jobs.states import EventKind
from backend.jobs.store import Store

_log = logging.getLogger(__name__)

CLOSE_S = 5.0
"""Wait for a thread at close(); one that hangs in a call to a dead node is left to end by itself."""


class Watch:
    """The threads of one unfinished run. start() once; they end by themselves with the run, or at close()."""

    def __init__(
        self,
        store: Store,
        connections: Connections,
        home: Path,
        run: str,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        timing: Timing,
    ) -> None:
        self._store = store
        self._run = run
        self._clock = clock
        self._timing = timing
        self._closing = threading.Event()
        self._wake = threading.Event()
        self.over = threading.Event()
        """Set when the run has ended."""
        with store.read() as connection:
            job = ledger.job_of(connection, run)
            self._attempt = ledger.newest_attempt(connection, run)
            records = ledger.nodes(connection, run, self._attempt)

        def connect(rank: int) -> Node:
            return connections.get(job.cluster.hosts[rank])

        def follower(rank: int) -> Follower:
            return Follower(
                Collector(store, run, self._attempt, records[rank], ranks_of(job, rank), clock),
                lambda: connect(rank),
                lambda report: self._report(rank, report),
                monotonic=monotonic,
                poll_s=timing.poll_s,
            )

        self._followers = {record.rank: follower(record.rank) for record in records}
        self._lead = Lead(
            store=store,
            home=home,
            run=run,
            attempt=self._attempt,
            connect=connect,
            link=lambda rank: self._followers[rank].link(),
            clock=clock,
            monotonic=monotonic,
            timing=timing,
        )
        self._threads = [threading.Thread(target=self._lead_on, name=f"lead {run}", daemon=True)] + [
            threading.Thread(target=self._follow, args=(one,), name=f"follow {run} {rank}", daemon=True)
            for rank, one in self._followers.items()
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Something was recorded that the lead should act on now."""
        self._wake.set()

    def close(self) -> None:
        """Stop watching; the run goes on."""
        self._closing.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _follow(self, follower: Follower) -> None:
        while not follower.ended and not self._closing.is_set():
            try:
                delay = follower.step()
            except Exception:  # the edge of a thread: one strange file must not end the watch of a node
                _log.exception("collecting for %s", self._run)
                delay = LONGEST_BACK_OFF_S
            self._closing.wait(delay)
        self._wake.set()

    def _lead_on(self) -> None:
        while not self._closing.is_set():
            try:
                if self._lead.tick():
                    break
            except Exception:  # the edge of a thread: the next tick tries again
                _log.exception("leading %s", self._run)
            self._wake.wait(self._timing.poll_s)
            self._wake.clear()
        else:
            return
        self.over.set()
        self._closing.set()

    def _report(self, rank: int, report: LinkReport) -> None:
        kind = EventKind.NODE_REACHABLE if report.problem is None else EventKind.NODE_UNREACHABLE
        detail = {} if report.problem is None else {"problem": problem_to_json(report.problem)}
        self._store.write(
            lambda connection: ledger.append(
                connection, self._run, kind, time=self._clock(), attempt=self._attempt, rank=rank, detail=detail
            )
        )
