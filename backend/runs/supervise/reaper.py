"""Stops of ended attempts that some nodes have not proved yet.

A lost node may continue to train until it can be reached again. On another node, no signal could end the processes.
The reaper asks each of these nodes again, with pauses that double, for 30 days.
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
from backend.runs.store.store import Store
from backend.runs.supervise.attempt_cleanup import clean_up

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0
"""Longest pause between two tries. The pauses double, so a node is noticed within twice the time of its absence."""
FORGOTTEN_AFTER_S = 30 * 86400.0
"""After this time since the end of its run, a node is not asked any more."""


class Debt(NamedTuple):
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
        self._waits: dict[Debt, tuple[float, float]] = {}
        """(time of the next try, pause before it)."""
        self._left_alone: set[str] = set()
        """Runs that could not be read at the last try; each was logged."""

    def reap(self) -> None:
        """Ask the nodes that are due, in parallel, and record their answers.

        A run that cannot be read is logged once, and its nodes are not asked until it can be read. The list of runs
        shows the reason.
        """
        with self._store.read() as connection:
            owing = debts(connection, self._clock() - FORGOTTEN_AFTER_S)
        self._left_alone &= {debt.run for debt in owing}
        now = self._monotonic()
        self._waits = {debt: self._waits.get(debt, (now + FIRST_PAUSE_S, FIRST_PAUSE_S)) for debt in owing}
        due = [debt for debt, (when, _) in self._waits.items() if when <= now]
        _, failures = try_all(due, lambda _, debt: self._ask(debt), STOP_CALL_S + 30)
        for index, failure in failures.items():
            _log.info("node %d of %s, after its end: %s", due[index].rank, due[index].run, failure)
        for debt in due:
            pause = min(LONGEST_PAUSE_S, 2 * self._waits[debt][1])
            self._waits[debt] = (self._monotonic() + pause, pause)

    def _ask(self, debt: Debt) -> None:
        try:
            with self._store.read() as connection:
                job = run_store.job_of(connection, debt.run)
                run_store.events(connection, debt.run)
        except ProblemsError as error:
            if debt.run not in self._left_alone:
                self._left_alone.add(debt.run)
                _log.error("nodes of %s are not asked after its end, for the run cannot be read: %s", debt.run, error)
            return
        if debt.run in self._left_alone:
            self._left_alone.discard(debt.run)
            _log.info("%s can be read again", debt.run)
        nodes = {debt.rank: self._connections.get(job.cluster.hosts[debt.rank])}
        try:
            clean_up(self._store, debt.run, debt.attempt, job, nodes, grace_s=self._grace_s, clock=self._clock)
        except GroupError as error:
            raise error.failures[debt.rank] from error


_PROVES_NOTHING = (
    "CASE WHEN json_valid({0}) AND json_type({0}, '$.left') = 'array' THEN json_array_length({0}, '$.left') > 0"
    " ELSE 1 END"
)
"""SQL condition on the record of a stop: it is missing or unreadable, or processes are left. An unreadable exit has no
`left`."""


def debts(connection: sqlite3.Connection, since: float, *, run: str | None = None) -> list[Debt]:
    """Return the nodes without a proof in ended attempts, of runs that ended after `since`, or of one run."""
    which, values = ("", (since,)) if run is None else (" AND n.run = ?", (since, run))
    rows = connection.execute(
        "SELECT n.run, n.attempt, n.rank FROM nodes n JOIN runs r ON r.id = n.run"  # noqa: S608
        " WHERE r.engine <> 'watched'"
        " AND coalesce(r.ended > ?, n.attempt < (SELECT max(attempt) FROM attempts a WHERE a.run = n.run))"
        f" AND {_PROVES_NOTHING.format('n.exit')} AND {_PROVES_NOTHING.format('n.stop')}{which}"
        " ORDER BY n.run, n.attempt, n.rank",
        values,
    )
    return [Debt(*row) for row in rows]
