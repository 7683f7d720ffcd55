"""Supervision of one run: one thread for each node polls its records, and one thread monitors the gang."""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from backend.cluster.node import Node
from backend.runs.collect.collector import Collector
from backend.runs.collect.poller import LONGEST_BACK_OFF_S, Poller, record_connection, was_away
from backend.runs.connections import Connections
from backend.runs.launch.launch import ranks_of
from backend.runs.records import Event, NodeRecord
from backend.runs.store import attempts, run_store
from backend.runs.store.node_replacement import job_on_nodes
from backend.runs.store.store import Store
from backend.runs.supervise.gang_monitor import GangMonitor
from backend.runs.supervise.gang_rules import Timing
from backend.runs.supervise.slurm_monitor import SlurmMonitor

_log = logging.getLogger(__name__)

CLOSE_S = 5.0
"""How long close() waits for each thread. A thread that hangs in a call to a dead node ends later by itself."""


class Watch:
    """The threads of one unfinished run. Call start() once. They end with the run, or at close()."""

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
        self._store = store
        self._connections = connections
        self._run = run
        self._clock = clock
        self._monotonic = monotonic
        self._timing = timing
        self._closing = threading.Event()
        self._wake = threading.Event()
        self.over = threading.Event()
        """Set when the run has ended."""
        with store.read() as connection:
            self._attempt = attempts.newest(connection, run)
            self._job = job_on_nodes(connection, run, self._attempt)
            records = attempts.nodes(connection, run, self._attempt)
            history = run_store.events(connection, run)

        self._pollers = {record.rank: self._poller(record, history) for record in records}
        monitor = GangMonitor if self._job.cluster.scheduler is None else SlurmMonitor
        self._gang_monitor = monitor(
            store=store,
            home=home,
            run=run,
            attempt=self._attempt,
            connect=self._connect,
            connection=lambda rank: self._pollers[rank].connection(),
            clock=clock,
            monotonic=monotonic,
            timing=timing,
        )
        self._threads = [threading.Thread(target=self._monitor_gang, name=f"gang monitor {run}", daemon=True)] + [
            threading.Thread(target=self._poll, args=(node_poller,), name=f"poll {run} {rank}", daemon=True)
            for rank, node_poller in self._pollers.items()
        ]

    def _connect(self, rank: int) -> Node:
        return self._connections.get(self._job.cluster.connected_hosts[rank])

    def _poller(self, record: NodeRecord, history: Sequence[Event]) -> Poller:
        store, run, attempt, rank, clock = self._store, self._run, self._attempt, record.rank, self._clock
        return Poller(
            Collector(store, run, attempt, record, ranks_of(self._job, rank), clock),
            lambda: self._connect(rank),
            lambda error: record_connection(store, run, attempt, rank, error, clock()),
            monotonic=self._monotonic,
            poll_s=self._timing.poll_s,
            was_away=was_away(history, attempt, rank),
        )

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Let the gang monitor act now on something that was recorded."""
        self._wake.set()

    def close(self) -> None:
        """Stop the threads. The run continues on its nodes."""
        self._closing.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _poll(self, poller: Poller) -> None:
        while not poller.ended and not self._closing.is_set():
            try:
                delay = poller.step()
            except Exception:  # the edge of a thread: one unreadable file must not stop the polling of a node
                _log.exception("collecting for %s", self._run)
                delay = LONGEST_BACK_OFF_S
            self._closing.wait(delay)
        self._wake.set()

    def _monitor_gang(self) -> None:
        while not self._closing.is_set():
            try:
                if self._gang_monitor.tick():
                    break
            except Exception:  # the edge of a thread: the next tick tries again
                _log.exception("monitoring the gang of %s", self._run)
            self._wake.wait(self._timing.poll_s)
            self._wake.clear()
        else:
            return
        self.over.set()
        self._closing.set()
