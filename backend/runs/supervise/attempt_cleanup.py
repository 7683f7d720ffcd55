"""Clean-up of an attempt before the next one: no process is left on the nodes, and all records are in the store.

A lost node may have continued to train, and a node that was down has logs and steps that were not read yet.
"""

import sqlite3
from collections.abc import Callable, Mapping

from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import on_all
from backend.job.job import Job
from backend.runs.collect.collector import Collector
from backend.runs.collect.node_files import OTHER_RANKS_EVERY
from backend.runs.collect.node_records import Stopped
from backend.runs.launch.launch import STOP_CALL_S, ranks_of
from backend.runs.launch.slurm_stop import SLURM_STOP_S, stop_node
from backend.runs.states import EventKind
from backend.runs.store import attempts, run_store
from backend.runs.store.store import Store
from backend.runs.supervise.gang_rules import nothing_left


def clean_up(
    store: Store,
    run: str,
    attempt: int,
    job: Job,
    nodes: Mapping[int, Node],
    *,
    grace_s: float,
    clock: Callable[[], float],
) -> None:
    """Stop the processes of an attempt and collect its last records.

    Raises GroupError, which names the nodes without a proof.
    """
    with store.read() as connection:
        records = attempts.nodes(connection, run, attempt)

    def work(rank: int, node: Node) -> None:
        record = records[rank]
        is_proved = nothing_left(record.stop, record.exit)
        answer = None if is_proved else stop_node(job, run, attempt, records, record, node, grace_s)
        processes_left = answer["left"] if answer else []
        # Collect before the proof is recorded: after it, nobody asks the node again, even if this process dies.
        if record.exit is None and not processes_left:
            _collect(Collector(store, run, attempt, record, ranks_of(job, rank), clock), node)
        if answer is not None:
            store.write(lambda c: _record_proof(c, run, attempt, rank, answer, clock()))
        if processes_left:
            raise NodeError("processes_left", node.name, processes=len(processes_left))

    on_all(nodes, work, STOP_CALL_S + (SLURM_STOP_S if job.cluster.scheduler else 10))


def _record_proof(
    connection: sqlite3.Connection, run: str, attempt: int, rank: int, answer: Stopped, now: float
) -> None:
    attempts.set_stop(connection, run, attempt, rank, answer)
    detail = {"left": answer["left"]}
    run_store.append(connection, run, EventKind.NODE_STOPPED, time=now, attempt=attempt, rank=rank, detail=detail)


def _collect(collector: Collector, node: Node) -> None:
    """Read every file to its end. A killed supervisor writes no exit, so the end of its files counts."""
    for _ in range(OTHER_RANKS_EVERY):
        while collector.poll(node).more:
            pass
