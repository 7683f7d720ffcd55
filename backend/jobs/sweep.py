"""After the end of an attempt: what could not be proved then is proved when the node is back.

A node that was lost may train on in silence until it can be told to stop; one whose processes no signal could end may
have been freed since. Each is asked again, after pauses that double, as long as anybody may care.
"""

import logging
import sqlite3
from collections.abc import Callable
from typing import NamedTuple

from backend.cluster.group import GroupError, try_all
from backend.jobs import ledger
from backend.jobs.connections import Connections
from backend.jobs.launch import STOP_CALL_S
from backend.jobs.settle import settle
from backend.jobs.store import Store

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 600.0
"""Between two tries; doubled from the first, so that a node is noticed within as long again as it was away."""
FORGOTTEN_AFTER_S = 30 * 86400.0
"""A node that has not been back for so long after its run had ended is not asked any more."""


class Debt(NamedTuple):
    """A node of an attempt that has not proved that nothing is left on it."""

    run: str
    attempt: int
    rank: int


class Sweeper:
    """Asks the nodes that owe a proof. `sweep` is called in a loop by one thread; several sweepers do no harm."""

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
        """When to ask next, and the pause before that."""

    def sweep(self) -> None:
        """Ask those that are due once, in parallel; what they answer is recorded with their run."""
        with self._store.read() as connection:
            owing = debts(connection, self._clock() - FORGOTTEN_AFTER_S)
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
        with self._store.read() as connection:
            job = ledger.job_of(connection, debt.run)
        nodes = {debt.rank: self._connections.get(job.cluster.hosts[debt.rank])}
        try:
            settle(self._store, debt.run, debt.attempt, job, nodes, grace_s=self._grace_s, clock=self._clock)
        except GroupError as error:
            raise error.failures[debt.rank] from error


def debts(connection: sqlite3.Connection, since: float) -> list[Debt]:
    """The nodes without a proof, of attempts that have ended; of runs that ended later than `since`."""
    rows = connection.execute(
        "SELECT n.run, n.attempt, n.rank FROM nodes n JOIN runs r ON r.id = n.run"
        " WHERE r.engine <> 'watched'"
        " AND coalesce(r.ended > ?, n.attempt < (SELECT max(attempt) FROM attempts a WHERE a.run = n.run))"
        " AND (n.exit IS NULL OR json_array_length(n.exit, '$.left') > 0)"
        " AND (n.stop IS NULL OR json_array_length(n.stop, '$.left') > 0)"
        " ORDER BY n.run, n.attempt, n.rank",
        (since,),
    )
    return [Debt(*row) for row in rows]
