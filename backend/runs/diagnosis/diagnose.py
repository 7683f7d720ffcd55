"""Why a gang failed: the node that was first, and what its last words mean.

Known texts become a Problem with a code of its own; everything else is `training_failed` with the culprit's last lines.
A text that only says that another rank was gone never wins over one that says why.
"""

import math
import re
import sqlite3
from collections.abc import Mapping, Sequence

from backend.job.problems import Problem
from backend.runs.collect.log_text import readable
from backend.runs.collect.node_records import UNREADABLE, Exit, Stuck
from backend.runs.diagnosis import collectives, gpu_errors, log_patterns
from backend.runs.records import NodeRecord
from backend.runs.states import EventKind
from backend.runs.store import metrics, run_store
from backend.runs.store.metrics import FileKey
from backend.runs.supervise import gang_rules
from backend.runs.supervise.gang_rules import NodeView

TAIL_BYTES = 64 << 10
"""Read of each log's end; a traceback is far shorter."""

RANK_LOG = re.compile(r"rank(?P<rank>\d+)\.log")
ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):.*?rank\s*:\s*(?P<rank>\d+)", re.DOTALL)


def diagnose(
    connection: sqlite3.Connection,
    run: str,
    attempt: int,
    records: Sequence[NodeRecord],
    unreachable: Mapping[int, float] | None = None,
) -> Problem:
    """The problem to tell: the earliest node with a known cause, else the earliest that failed, with its last lines.

    At least one failed by itself.

    `unreachable`: nodes that have not ended as far as is known, and for how many seconds they have not answered; the
    first of them is to blame when all that failed say no more than that somebody was gone.
    """
    ended = [NodeView(rank=r.rank, exit=r.exit, clock_offset_s=r.clock_offset_s) for r in records]
    suspects = [records[view.rank] for view in gang_rules.first_failure(ended)]
    texts = {record.rank: _logs(connection, run, attempt, record.rank) for record in suspects}
    for record in suspects:
        problem = _known_cause(record, texts[record.rank])
        if problem is not None:
            return problem
    if _loss_is_lost(connection, run, attempt):
        return _problem("loss_not_finite", suspects[0], texts[suspects[0].rank])
    broken = gpu_errors.find(records)
    if broken is not None:
        return broken
    odd = _unreachable_by_gloo(connection, run, attempt, records)
    if odd is not None:
        return odd
    first = next((r for r in suspects if _has_stalled(r) or not log_patterns.is_consequence(texts[r.rank])), None)
    if first is None or _has_stalled(first):
        stuck = _stuck(connection, run, attempt, records)
        if stuck is not None:
            return stuck
    if first is not None:
        return _by_exit(first, texts[first.rank])
    gone = next((record for record in records if _gone(record)), None)
    if gone is not None:
        return supervisor_gone(gone, rebooted=_gone(gone) == "restart")
    killed = next((record for record in suspects if _was_killed(record, texts[record.rank])), None)
    if killed is not None:
        return _by_exit(killed, texts[killed.rank])
    if unreachable:
        return node_lost(records[max(unreachable, key=lambda rank: unreachable[rank])], max(unreachable.values()))
    late = _timed_out(connection, run, attempt, records)
    return late or _problem("communication_failed", suspects[0], texts[suspects[0].rank])


_CODE_OF_VERDICT: Mapping[collectives.Why, str] = {
    "absent": "collective_not_joined",
    "differ": "collectives_differ",
    "hung": "collective_hung",
}


def _timed_out(connection: sqlite3.Connection, run: str, attempt: int, records: Sequence[NodeRecord]) -> Problem | None:
    """What the watchdogs of all ranks say of a collective that timed out, and the node of those who are to blame."""
    logs = {
        int(found["rank"]): {file: text}
        for record in records
        for file, text in _logs(connection, run, attempt, record.rank).items()
        if (found := RANK_LOG.fullmatch(file))
    }
    said = {rank: collectives.read(*log.values()) for rank, log in logs.items()}
    if not any(one.waits for one in said.values()):
        return None
    job = run_store.job_of(connection, run)
    verdict = collectives.judge(said, job)
    first = verdict.ranks[0]
    return _problem(
        _CODE_OF_VERDICT[verdict.why],
        records[first // job.cluster.gpus_per_node],
        logs.get(first, {}),
        ranks=", ".join(f"rank {rank}" for rank in verdict.ranks[: collectives.MOST]),
        operation=" / ".join(verdict.operations),
        waited_s=round(verdict.waited_s),
        waiting=verdict.waiting,
    )


def _unreachable_by_gloo(
    connection: sqlite3.Connection, run: str, attempt: int, records: Sequence[NodeRecord]
) -> Problem | None:
    """The one node that says nothing while all others cannot connect: to what it told them of itself."""
    logs = [_logs(connection, run, attempt, record.rank) for record in records]
    silent = [
        r for r, texts in zip(records, logs, strict=True) if not any(map(log_patterns.NO_WAY.search, texts.values()))
    ]
    if len(silent) != 1 or len(records) < 3:
        return None
    return _problem("wrong_interface", silent[0], logs[silent[0].rank])


def _stuck(connection: sqlite3.Connection, run: str, attempt: int, records: Sequence[NodeRecord]) -> Problem | None:
    """The node whose processes stand still while the others wait for them."""
    beats = {rank: beat for rank, (_, beat) in metrics.newest_heartbeats(connection, run, attempt).items()}
    stopped = _stopped_since_the_last_step(connection, run, attempt, records)
    for record in records:
        told = (record.exit, beats.get(record.rank))
        stuck = next((stuck for one in told if one and (stuck := one.get("stuck"))), stopped.get(record.rank))
        if stuck:
            return _problem(
                "process_stuck",
                record,
                _logs_of_ranks(connection, run, attempt, record, stuck),
                processes=stuck_words(stuck),
            )
    return None


def _stopped_since_the_last_step(
    connection: sqlite3.Connection, run: str, attempt: int, records: Sequence[NodeRecord]
) -> dict[int | None, Sequence[Stuck]]:
    """Node rank -> its processes that somebody stopped: its supervisor wakes them to end them, before it has told."""
    newest = metrics.newest_points(connection, run, attempt, count=1)
    since = newest[0].time - records[0].clock_offset_s if newest else 0.0
    told = [event for event in run_store.events(connection, run) if event.kind is EventKind.NODE_STUCK]
    mine = [event for event in told if event.attempt == attempt and event.time > since]
    return {
        event.rank: stuck
        for event in mine
        if (stuck := [one for one in event.detail.get("stuck", ()) if one[2] != "D"])
    }


def _logs_of_ranks(
    connection: sqlite3.Connection, run: str, attempt: int, record: NodeRecord, stuck: Sequence[Stuck]
) -> dict[str, str]:
    """The logs of the ranks that stand still, where the supervisor knows them."""
    named = {f"rank{rank}.log" for _, _, _, rank in stuck}
    return {file: text for file, text in _logs(connection, run, attempt, record.rank).items() if file in named}


def stuck_words(stuck: Sequence[Stuck]) -> str:
    """`rank 3: python3 1234 (T)` for each process that stands still; older supervisors do not tell the rank."""
    return ", ".join(f"{_of_rank(rank)}{name} {pid} ({state})" for pid, name, state, rank in stuck)


def _of_rank(rank: int | None) -> str:
    return "" if rank is None else f"rank {rank}: "


def node_lost(record: NodeRecord, seconds: float) -> Problem:
    """The node has not answered for so long."""
    return Problem(code="node_lost", node=record.address, values={"node": record.address, "seconds": round(seconds)})


def supervisor_gone(record: NodeRecord, *, rebooted: bool) -> Problem:
    """Nobody watches over the node's processes any more: its supervisor was killed, or the machine restarted."""
    code = "node_restarted" if rebooted else "supervisor_gone"
    return Problem(code=code, node=record.address, values={"node": record.address})


def _gone(record: NodeRecord) -> str:
    """What ended the node's supervisor, as its exit says; the answer to a stop brings that along."""
    ended = record.exit or (record.stop["exit"] if record.stop and "exit" in record.stop else None)
    return ended.get("gone", "") if ended else ""


def _known_cause(record: NodeRecord, logs: Mapping[str, str]) -> Problem | None:
    for file, text in logs.items():
        known = log_patterns.cause(text)
        if known is not None:
            code, values = known
            return _problem(code, record, {file: text}, **values)
    return None


def _by_exit(record: NodeRecord, logs: Mapping[str, str]) -> Problem:
    ended: Exit = record.exit or {}
    if ended.get("disk_full"):  # on which nobody could write that it was full
        return _problem("disk_full", record, logs)
    if ended.get("reason") in _CODE_OF_REASON:
        detail = log_patterns.last_words(logs)[1]
        return _problem(_CODE_OF_REASON[ended["reason"]], record, logs, detail=detail, run="?")
    code = "killed" if _was_killed(record, logs) else "training_failed"
    return _problem(code, record, logs, exit=ended.get("code"))


def _was_killed(record: NodeRecord, logs: Mapping[str, str]) -> bool:
    killed = (record.exit or {}).get("signal") == 9
    return killed or any("exitcode  : -9" in text or "Signal 9 (SIGKILL)" in text for text in logs.values())


_CODE_OF_REASON = {
    "stalled": "stalled",
    "lock_held": "node_locked",
    "start_failed": "start_failed",
    UNREADABLE: "exit_unreadable",
}


def _problem(code: str, record: NodeRecord, logs: Mapping[str, str], **values: object) -> Problem:
    file, lines = log_patterns.last_words(logs)
    told = {"node": record.address, "rank": record.rank, "file": file, "lines": lines, **values}
    return Problem(code=code, node=record.address, values=told)


def _logs(connection: sqlite3.Connection, run: str, attempt: int, rank: int) -> dict[str, str]:
    """The ends of a node's logs: that of the rank torchrun blames first, its own console last."""
    texts = {}
    for file in metrics.log_files(connection, run, attempt, rank):
        key = FileKey(run=run, attempt=attempt, rank=rank, file=file)
        texts[file] = readable(metrics.log_tail(connection, key, size=TAIL_BYTES)[1])
    blamed = ROOT_CAUSE.search(texts.get("out.log", ""))
    first = f"rank{blamed['rank']}.log" if blamed else ""
    order = sorted(texts, key=lambda file: (file == "out.log", file != first, file))
    return {file: texts[file] for file in order}


def _has_stalled(record: NodeRecord) -> bool:
    """Its supervisor ended it for that: that torchrun then complains of the signal is no news."""
    return (record.exit or {}).get("reason") == "stalled"


def _loss_is_lost(connection: sqlite3.Connection, run: str, attempt: int) -> bool:
    newest = metrics.newest_points(connection, run, attempt, count=20)
    losses = [point.loss for point in newest if point.loss is not None]
    return bool(losses) and not math.isfinite(losses[-1])
