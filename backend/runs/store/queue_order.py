"""The queue: runs that wait for their nodes, in the user's order. Functions on a connection, as in run_store.py.

A run's turn comes when no other run holds one of its nodes and none before it in the queue waits for one of them, so
that runs that share no node start side by side and none is overtaken for ever.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.runs.store import run_store
from backend.runs.store.run_store import run_job

Move = Literal["first", "up", "down", "last"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A run in the queue."""

    run: str
    addresses: tuple[str, ...]
    """The nodes that it needs."""
    not_before: float = 0.0
    """Epoch seconds; an automatic restart waits a while."""


def addresses_of(job: Job) -> list[str]:
    """What the job's nodes are claimed by."""
    return [host.name for host in job.cluster.hosts]


def add(connection: sqlite3.Connection, run: str, *, first: bool = False, not_before: float = 0.0) -> None:
    """Put a run at the end of the queue, or in front of it; one that is there already stays in its place."""
    row = connection.execute("SELECT min(position), max(position) FROM queue").fetchone()
    position = (row[0] or 0) - 1 if first else (row[1] or 0) + 1
    connection.execute(
        "INSERT INTO queue VALUES (?, ?, ?) ON CONFLICT (run) DO UPDATE SET not_before = excluded.not_before",
        (run, position, not_before),
    )


def waiting(connection: sqlite3.Connection) -> list[Waiting]:
    """The queue in its order, without those whose job cannot be read: they are nobody's turn, and hold none up."""
    rows = connection.execute(
        "SELECT q.run, q.not_before, r.job FROM queue q JOIN runs r ON r.id = q.run ORDER BY q.position"
    )
    found = []
    for row in rows:
        try:
            addresses = tuple(addresses_of(run_job(row["job"])))
        except ProblemsError:  # the list of runs says why
            continue
        found.append(Waiting(run=row["run"], addresses=addresses, not_before=row["not_before"]))
    return found


def is_waiting(connection: sqlite3.Connection, run: str) -> bool:
    """Whether the run is in the queue."""
    return connection.execute("SELECT 1 FROM queue WHERE run = ?", (run,)).fetchone() is not None


def move(connection: sqlite3.Connection, run: str, where: Move) -> None:
    """Change a run's place; nothing at the end of the queue. ProblemsError(not_queued) when it does not wait."""
    order = [one.run for one in waiting(connection)]
    if run not in order:
        raise ProblemsError([Problem(code="not_queued", values={"run": run})])
    place = order.index(run)
    order.pop(place)
    places = {"first": 0, "up": max(0, place - 1), "down": place + 1, "last": len(order)}
    order.insert(places[where], run)
    connection.executemany("UPDATE queue SET position = ? WHERE run = ?", [(i, one) for i, one in enumerate(order, 1)])


def reasons(queue: Iterable[Waiting], claims: Mapping[str, str], now: float) -> dict[str, Problem | None]:
    """What each run waits for, in the queue's order; None: it is its turn. `claims`: address -> who holds the node."""
    found: dict[str, Problem | None] = {}
    wanted: dict[str, str] = {}
    for one in queue:
        held = [(address, claims[address]) for address in one.addresses if claims.get(address, one.run) != one.run]
        before = [(address, wanted[address]) for address in one.addresses if address in wanted]
        if held or before:
            node, run = (held or before)[0]
            found[one.run] = Problem(
                code="waits_for_run" if held else "waits_behind", severity="note", values={"node": node, "run": run}
            )
        elif one.not_before > now:
            found[one.run] = Problem(code="waits_to_restart", severity="note")
        else:
            found[one.run] = None
        wanted = dict.fromkeys(one.addresses, one.run) | wanted
    return found


def why_waiting(connection: sqlite3.Connection, now: float) -> dict[str, Problem | None]:
    """`reasons` of the queue as it is."""
    return reasons(waiting(connection), run_store.claims(connection), now)


def turns(connection: sqlite3.Connection, now: float) -> list[str]:
    """The runs that can be started now, in the queue's order."""
    return [run for run, why in why_waiting(connection, now).items() if why is None]
