"""Watches one run: a thread a node that collects, and one that leads the gang."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from backend.cluster.node import Node
from backend.runs.collect.collector import Collector
from backend.runs.collect.poller import LONGEST_BACK_OFF_S, Follower, tell_link, was_away
from backend.runs.connections import Connections
from backend.runs.launch.launch import ranks_of
from backend.runs.store import attempts, run_store
from backend.runs.store.store import Store
from backend.runs.supervise.gang_monitor import Lead
from backend.runs.supervise.gang_rules import Timing

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
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        timing: Timing,
    ) -> None:
        self._run = run
        self._timing = timing
        self._closing = threading.Event()
        self._wake = threading.Event()
        self.over = threading.Event()
        """Set when the run has ended."""
        with store.read() as connection:
            job = run_store.job_of(connection, run)
            self._attempt = attempts.newest(connection, run)
            records = attempts.nodes(connection, run, self._attempt)
            history = run_store.events(connection, run)

        def connect(rank: int) -> Node:
            return connections.get(job.cluster.hosts[rank])

        def follower(rank: int) -> Follower:
            return Follower(
                Collector(store, run, self._attempt, records[rank], ranks_of(job, rank), clock),
                lambda: connect(rank),
                lambda error: tell_link(store, run, self._attempt, rank, error, clock()),
                monotonic=monotonic,
                poll_s=timing.poll_s,
                was_away=was_away(history, self._attempt, rank),
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
