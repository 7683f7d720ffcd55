"""The queue of runs that wait for their nodes, in the user's order. Functions on a connection, as in run_store.py.

A run may start when no other run holds one of its nodes, and no earlier run in the queue waits for one of them. So runs
without a common node start side by side, and no run waits for ever.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.runs.store import run_store
from backend.runs.store.node_replacement import job_on_nodes
from backend.runs.store.run_store import run_job

Move = Literal["first", "up", "down", "last"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A run in the queue."""

    run: str
    addresses: tuple[str, ...]
    """The nodes that it needs."""
    not_before: float = 0.0
    """Epoch seconds. An automatic restart waits for some time."""


def addresses_of(job: Job) -> list[str]:
    """Return the names by which a job claims its nodes. A scheduler gives each run nodes of its own."""
    return [host.name for host in job.cluster.hosts]


def add(connection: sqlite3.Connection, run: str, *, first: bool = False, not_before: float = 0.0) -> None:
    """Put a run at the end of the queue, or at its front. A run in the queue keeps its place."""
    row = connection.execute("SELECT min(position), max(position) FROM queue").fetchone()
    position = (row[0] or 0) - 1 if first else (row[1] or 0) + 1
    connection.execute(
        "INSERT INTO queue VALUES (?, ?, ?) ON CONFLICT (run) DO UPDATE SET not_before = excluded.not_before",
        (run, position, not_before),
    )


def waiting(connection: sqlite3.Connection) -> list[Waiting]:
    """Return the queue in order, without runs whose job cannot be read. Those do not start and block no other run."""
    rows = connection.execute(
        "SELECT q.run, q.not_before, r.job FROM queue q JOIN runs r ON r.id = q.run ORDER BY q.position"
    )
    queue = []
    for row in rows:
        try:
            job = run_job(row["job"])
            addresses = tuple(addresses_of(job_on_nodes(connection, row["run"]) if job.cluster.spares else job))
        except ProblemsError:  # the list of runs says why
            continue
        queue.append(Waiting(run=row["run"], addresses=addresses, not_before=row["not_before"]))
    return queue


def is_waiting(connection: sqlite3.Connection, run: str) -> bool:
    """Return whether the run is in the queue."""
    return connection.execute("SELECT 1 FROM queue WHERE run = ?", (run,)).fetchone() is not None


def move(connection: sqlite3.Connection, run: str, where: Move) -> None:
    """Move a run in the queue. Raises ProblemsError(not_queued) when it is not there."""
    order = [queued.run for queued in waiting(connection)]
    if run not in order:
        raise ProblemsError([Problem(code="not_queued", values={"run": run})])
    index = order.index(run)
    order.pop(index)
    indices = {"first": 0, "up": max(0, index - 1), "down": index + 1, "last": len(order)}
    order.insert(indices[where], run)
    connection.executemany(
        "UPDATE queue SET position = ? WHERE run = ?", [(i, queued) for i, queued in enumerate(order, 1)]
    )


def reasons(queue: Iterable[Waiting], claims: Mapping[str, str], now: float) -> dict[str, Problem | None]:
    """Return what each queued run waits for; None: it may start. `claims`: address -> the run that holds the node."""
    problems: dict[str, Problem | None] = {}
    needed_by: dict[str, str] = {}
    for queued in queue:
        run, addresses = queued.run, queued.addresses
        holders = [(address, claims[address]) for address in addresses if claims.get(address, run) != run]
        earlier = [(address, needed_by[address]) for address in addresses if address in needed_by]
        problems[run] = None
        if holders or earlier:
            node, other_run = (holders or earlier)[0]
            code = "waits_for_run" if holders else "waits_behind"
            problems[run] = Problem(code=code, severity="note", values={"node": node, "run": other_run})
        elif queued.not_before > now:
            problems[run] = Problem(code="waits_to_restart", severity="note")
        needed_by = dict.fromkeys(addresses, run) | needed_by
    return problems


def why_waiting(connection: sqlite3.Connection, now: float) -> dict[str, Problem | None]:
    """Return `reasons` of the current queue."""
    return reasons(waiting(connection), run_store.claims(connection), now)


def turns(connection: sqlite3.Connection, now: float) -> list[str]:
    """Return the runs that may start now, in the order of the queue."""
    return [run for run, why in why_waiting(connection, now).items() if why is None]
