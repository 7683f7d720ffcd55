"""The node to blame if ranks waited for another one until a time-out, or could not connect to it."""

import re
import sqlite3
from collections.abc import Mapping, Sequence

from backend.job.problems import Problem
from backend.runs.diagnosis import collectives
from backend.runs.diagnosis.node_logs import RANK_LOG, logs_of, problem_of
from backend.runs.records import NodeRecord
from backend.runs.store import run_store

CANNOT_CONNECT = re.compile(r"gloo/transport/tcp/\S+.*connect: |Gloo connectFullMesh failed")
"""Errors of gloo on nodes that got a wrong address from another node. They do not name that node."""
GLOO_WAIT = re.compile(r"Timed out waiting (?P<waited_ms>\d+) ?ms for (?P<operation>send|recv) operation to complete")
_CODE_OF_VERDICT: Mapping[collectives.Why, str] = {
    "absent": "collective_not_joined",
    "differ": "collectives_differ",
    "hung": "collective_hung",
}


def waited_for(connection: sqlite3.Connection, run: str, attempt: int, records: Sequence[NodeRecord]) -> Problem | None:
    """Return the problem of the node whose rank the others waited for until a time-out; None if no log shows one."""
    return _timed_out(connection, run, attempt, records) or _absent_by_gloo(connection, run, attempt, records)


def _timed_out(connection: sqlite3.Connection, run: str, attempt: int, records: Sequence[NodeRecord]) -> Problem | None:
    """Return what the watchdogs of all ranks report of a timed-out collective, with the node of the first rank to
    blame.
    """
    logs = {
        int(match["rank"]): {file: text}
        for record in records
        for file, text in logs_of(connection, run, attempt, record.rank).items()
        if (match := RANK_LOG.fullmatch(file))
    }
    messages = {rank: collectives.read(*log.values()) for rank, log in logs.items()}
    if not any(message.waits for message in messages.values()):
        return None
    job = run_store.job_of(connection, run)
    verdict = collectives.judge(messages, job)
    first = verdict.ranks[0]
    return problem_of(
        _CODE_OF_VERDICT[verdict.why],
        records[first // job.cluster.gpus_per_node],
        logs.get(first, {}),
        ranks=", ".join(f"rank {rank}" for rank in verdict.ranks[: collectives.MOST]),
        operation=" / ".join(verdict.operations),
        waited_s=round(verdict.waited_s),
        waiting=verdict.waiting,
    )


def _absent_by_gloo(
    connection: sqlite3.Connection, run: str, attempt: int, records: Sequence[NodeRecord]
) -> Problem | None:
    """Blame the only rank that did not wait for others when all others waited until gloo's time-out."""
    logs = {
        int(match["rank"]): (record, file, text)
        for record in records
        for file, text in logs_of(connection, run, attempt, record.rank).items()
        if (match := RANK_LOG.fullmatch(file))
    }
    waits = {rank: wait for rank, (_, _, text) in logs.items() if (wait := GLOO_WAIT.search(text))}
    absent = set(logs) - set(waits)
    if not waits or len(absent) != 1:
        return None
    rank = absent.pop()
    record, file, text = logs[rank]
    return problem_of(
        "collective_not_joined",
        record,
        {file: text},
        ranks=f"rank {rank}",
        of_rank=rank,
        operation=" / ".join(sorted({wait["operation"] for wait in waits.values()})),
        waited_s=max(int(wait["waited_ms"]) for wait in waits.values()) // 1000,
        waiting=len(waits),
    )


def unreachable_by_gloo(
    connection: sqlite3.Connection, run: str, attempt: int, records: Sequence[NodeRecord]
) -> Problem | None:
    """Blame the only node that reports no error while all others cannot connect: it announced a wrong address."""
    logs = [logs_of(connection, run, attempt, record.rank) for record in records]
    cannot_connect = CANNOT_CONNECT.search
    silent = [r for r, texts in zip(records, logs, strict=True) if not any(map(cannot_connect, texts.values()))]
    if len(silent) != 1 or len(records) < 3:
        return None
    return problem_of("wrong_interface", silent[0], logs[silent[0].rank])
