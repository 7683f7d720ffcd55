"""Spares that take the place of nodes, and nodes that are kept out. Functions on a connection, as in run_store.py.

The job of a run never changes. Events (`node_replaced`) say which spare has which rank from the next attempt on. The
node that it replaces is cordoned: no run starts on it until a user allows it again.
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace

from backend.job.job import Job
from backend.job.problems import Problem
from backend.runs.records import problem_from_json, problem_to_json
from backend.runs.states import EventKind
from backend.runs.store import run_store


@dataclass(frozen=True, kw_only=True, slots=True)
class Cordon:
    """Why a node is kept out."""

    node: str
    run: str
    """The run that lost it."""
    time: float
    problem: Problem


def job_on_nodes(connection: sqlite3.Connection, run: str, attempt: int | None = None) -> Job:
    """Return the job of a run with the hosts of an attempt; None: of the next one.

    Raises ProblemsError(unknown_run).
    """
    job = run_store.job_of(connection, run)
    if not job.cluster.spares:
        return job
    hosts, spares = list(job.cluster.hosts), {spare.name: spare for spare in job.cluster.spares}
    for event in run_store.events(connection, run):
        if event.kind is EventKind.NODE_REPLACED and (attempt is None or event.attempt < attempt):
            hosts[event.rank or 0] = spares.pop(event.detail["spare"])
    return replace(job, cluster=replace(job.cluster, hosts=tuple(hosts), spares=tuple(spares.values())))


def replace_node(connection: sqlite3.Connection, run: str, attempt: int, problem: Problem, time: float) -> bool:
    """Let a free spare take the rank of the node that the problem names, and cordon that node; False without one."""
    job = job_on_nodes(connection, run)
    rank = next((rank for rank, host in enumerate(job.cluster.hosts) if host.name == problem.node), None)
    spare = next_spare(connection, run)
    if rank is None or spare is None or problem.node is None:
        return False
    detail = {"node": problem.node, "spare": spare, "problem": problem_to_json(problem)}
    run_store.append(connection, run, EventKind.NODE_REPLACED, time=time, attempt=attempt, rank=rank, detail=detail)
    cordon(connection, problem.node, run, problem, time)
    connection.execute("DELETE FROM claims WHERE run = ? AND address = ?", (run, problem.node))
    return True


def next_spare(connection: sqlite3.Connection, run: str) -> str | None:
    """Return the first spare that is neither cordoned nor held by another run; None without one."""
    taken = {address for address, holder in run_store.claims(connection).items() if holder != run}
    taken |= cordons(connection).keys()
    spares = job_on_nodes(connection, run).cluster.spares
    return next((spare.name for spare in spares if spare.name not in taken), None)


def cordon(connection: sqlite3.Connection, node: str, run: str, problem: Problem, time: float) -> None:
    """Keep a node out of every later launch. A node that is kept out already keeps its first reason."""
    connection.execute(
        "INSERT INTO cordons VALUES (?, ?, ?, ?) ON CONFLICT (node) DO NOTHING",
        (node, run, time, json.dumps(problem_to_json(problem), default=str)),
    )


def cordons(connection: sqlite3.Connection) -> Mapping[str, Cordon]:
    """Return the nodes that are kept out, by name."""
    return {
        row["node"]: Cordon(
            node=row["node"],
            run=row["run"],
            time=row["time"],
            problem=problem_from_json(json.loads(row["problem"])),
        )
        for row in connection.execute("SELECT node, run, time, problem FROM cordons ORDER BY time")
    }


def uncordon(connection: sqlite3.Connection, node: str) -> bool:
    """Let runs start on a node again; False if it was not kept out."""
    return connection.execute("DELETE FROM cordons WHERE node = ?", (node,)).rowcount > 0
