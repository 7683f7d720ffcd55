"""Proofs of nodes that no process of an ended attempt is left.

A lost node may continue to train until it can be reached again. On another node, no signal could end the processes.
The reaper asks each node without a proof again, with pauses that double, for 30 days.
"""

import logging
import sqlite3
from collections.abc import Callable
from typing import NamedTuple

from backend.cluster.node_group import GroupError, try_all
from backend.job.problems import ProblemsError
from backend.runs.connections import Connections
from backend.runs.launch.launch import STOP_CALL_S
from backend.runs.store import run_store
from backend.runs.store.node_replacement import job_on_nodes
from backend.runs.store.store import Store
from backend.runs.supervise.attempt_cleanup import clean_up

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0
"""Longest pause between two tries. The pauses double, so a node is noticed within twice the time of its absence."""
FORGOTTEN_AFTER_S = 30 * 86400.0
"""After this time since the end of its run, a node is not asked any more."""


class UnprovedNode(NamedTuple):
    """A node of an ended attempt that has not proved that no process is left."""

    run: str
    attempt: int
    rank: int


class Reaper:
    """Asks nodes for the missing proofs. One thread calls `reap` in a loop; several reapers do no harm."""

    def __init__(
        self,
        store: Store,
        connections: Connections,
        *,
        grace_s: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._connections = connections
        self._grace_s = grace_s
        self._clock = clock
        self._monotonic = monotonic
        self._waits: dict[UnprovedNode, tuple[float, float]] = {}
        """(time of the next try, pause before it)."""
        self._unreadable: set[str] = set()
        """Runs that could not be read at the last try; each was logged."""

    def reap(self) -> None:
        """Ask the nodes that are due, in parallel, and record their answers.

        A run that cannot be read is logged once, and its nodes are not asked until it can be read. The list of runs
        shows the reason.
        """
        with self._store.read() as connection:
            unproved = unproved_nodes(connection, self._clock() - FORGOTTEN_AFTER_S)
        self._unreadable &= {node.run for node in unproved}
        now = self._monotonic()
        self._waits = {node: self._waits.get(node, (now + FIRST_PAUSE_S, FIRST_PAUSE_S)) for node in unproved}
        due = [node for node, (when, _) in self._waits.items() if when <= now]
        _, failures = try_all(due, lambda _, node: self._ask(node), STOP_CALL_S + 30)
        for index, failure in failures.items():
            _log.info("node %d of %s, after its end: %s", due[index].rank, due[index].run, failure)
        for node in due:
            pause = min(LONGEST_PAUSE_S, 2 * self._waits[node][1])
            self._waits[node] = (self._monotonic() + pause, pause)

    def _ask(self, node: UnprovedNode) -> None:
        try:
            with self._store.read() as connection:
                job = job_on_nodes(connection, node.run, node.attempt)
                run_store.events(connection, node.run)
        except ProblemsError as error:
            if node.run not in self._unreadable:
                self._unreadable.add(node.run)
                _log.error("nodes of %s are not asked after its end, for the run cannot be read: %s", node.run, error)
            return
        if node.run in self._unreadable:
            self._unreadable.discard(node.run)
            _log.info("%s can be read again", node.run)
        connected = {node.rank: self._connections.get(job.cluster.connected_hosts[node.rank])}
        try:
            clean_up(self._store, node.run, node.attempt, job, connected, grace_s=self._grace_s, clock=self._clock)
        except GroupError as error:
            raise error.failures[node.rank] from error


_PROVES_NOTHING = (
    "CASE WHEN json_valid({0}) AND json_type({0}, '$.left') = 'array' THEN json_array_length({0}, '$.left') > 0"
    " ELSE 1 END"
)
"""SQL condition on the record of a stop: it is missing or unreadable, or processes are left. An unreadable exit has no
`left`."""


def unproved_nodes(connection: sqlite3.Connection, since: float, *, run: str | None = None) -> list[UnprovedNode]:
    """Return the nodes without a proof in ended attempts, of runs that ended after `since`, or of one run."""
    condition, values = ("", (since,)) if run is None else (" AND n.run = ?", (since, run))
    rows = connection.execute(
        "SELECT n.run, n.attempt, n.rank FROM nodes n JOIN runs r ON r.id = n.run"  # noqa: S608
        " WHERE r.engine <> 'watched'"
        " AND coalesce(r.ended > ?, n.attempt < (SELECT max(attempt) FROM attempts a WHERE a.run = n.run))"
        f" AND {_PROVES_NOTHING.format('n.exit')} AND {_PROVES_NOTHING.format('n.stop')}{condition}"
        " ORDER BY n.run, n.attempt, n.rank",
        values,
    )
    return [UnprovedNode(*row) for row in rows]
