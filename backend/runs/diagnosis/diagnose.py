"""Finds why a gang failed: the node that failed first, and the cause that its logs and other evidence show.

A known cause (causes/) gives a Problem with its own code. Otherwise `training_failed` has the last lines of that node.
A text that names a cause has priority over a text that only says that another rank was gone.
"""

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from backend.job.problems import Problem
from backend.runs.collect.node_records import UNREADABLE, Exit, Stuck, stuck_words
from backend.runs.diagnosis import gpu_errors, log_causes, waiting_ranks
from backend.runs.diagnosis.cause_catalogue import by_code
from backend.runs.diagnosis.log_causes import Match
from backend.runs.diagnosis.node_logs import RANK_LOG, logs_of, problem_of
from backend.runs.records import NodeRecord
from backend.runs.states import EventKind
from backend.runs.store import attempts, metrics, run_store
from backend.runs.supervise import gang_rules
from backend.runs.supervise.gang_rules import NodeView

LINES_BEFORE, LINES_AFTER = 5, 20
"""Lines that are shown around the line of a cause, if it is not in the last traceback."""

_AREAS_OF_SOFTWARE = frozenset({"packages", "engines", "gpus"})
"""Areas of the catalogue whose causes are mostly versions that do not fit together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Evidence:
    """The cause that the logs of one node show best."""

    record: NodeRecord
    file: str
    text: str
    match: Match
    others: tuple[str, ...]
    """Codes of other causes that fit the same text equally well."""

    @property
    def is_first_cause(self) -> bool:
        """Return whether the text shows a cause for certain, and none that follows from the end of another rank."""
        return self.match.is_certain and not self.match.cause.may_follow


def diagnose(
    connection: sqlite3.Connection,
    run: str,
    attempt: int,
    records: Sequence[NodeRecord],
    unreachable: Mapping[int, float] | None = None,
) -> Problem:
    """Return the problem of the earliest node with a known cause, else of the node that failed first.

    The problem has the lines of the log that show it. At least one node must have failed by itself. `unreachable`:
    node rank without a known end -> seconds for which it has not answered. The longest silent node is the cause when
    all failed nodes only say that another rank was gone. A cause in the software has the versions of its node.
    """
    problem = _diagnose(connection, run, attempt, records, unreachable or {})
    cause, rank = by_code().get(problem.code), problem.values.get("rank")
    if cause is None or cause.area not in _AREAS_OF_SOFTWARE or not isinstance(rank, int):
        return problem
    versions = attempts.versions(connection, run, attempt, rank)
    return replace(problem, values={**problem.values, "versions": versions}) if versions else problem


def _diagnose(
    connection: sqlite3.Connection,
    run: str,
    attempt: int,
    records: Sequence[NodeRecord],
    unreachable: Mapping[int, float],
) -> Problem:
    ended = [NodeView(rank=r.rank, exit=r.exit, clock_offset_s=r.clock_offset_s) for r in records]
    suspects = [records[view.rank] for view in gang_rules.first_failure(ended)]
    texts = {record.rank: logs_of(connection, run, attempt, record.rank) for record in suspects}
    evidence: list[_Evidence] = []
    gpu_error = gpu_errors.find(records)
    first = next(_first_causes(suspects, texts, evidence), None)
    if first is not None and not (gpu_error and first.match.cause.yields_to_kernel_log):
        return _named(first)
    if _loss_is_lost(connection, run, attempt):
        return problem_of("loss_not_finite", suspects[0], texts[suspects[0].rank])
    if gpu_error is not None:
        return gpu_error
    wrong_address = waiting_ranks.unreachable_by_gloo(connection, run, attempt, records)
    if wrong_address is not None:
        return wrong_address
    first_cause = next((r for r in suspects if _has_stalled(r) or not _is_consequence(texts[r.rank])), None)
    if first_cause is None or _has_stalled(first_cause):
        stuck = _stuck(connection, run, attempt, records)
        if stuck is not None:
            return stuck
    if first_cause is not None:
        of_first_cause = next((e for e in evidence if e.record is first_cause and not _has_stalled(first_cause)), None)
        return _named(of_first_cause) if of_first_cause else _by_exit(first_cause, texts[first_cause.rank])
    without_logs = _without_logs(connection, run, attempt, records, suspects, texts, unreachable)
    if without_logs is not None:
        return without_logs
    stopped = [record for record in records if record not in suspects]
    logs = ((record, logs_of(connection, run, attempt, record.rank)) for record in stopped)
    evidence += [best for record, texts_of_node in logs if (best := _evidence(record, texts_of_node))]
    if evidence:
        return _named(min(evidence, key=lambda shown: shown.match.order[0]))
    return problem_of("communication_failed", suspects[0], texts[suspects[0].rank])


def _without_logs(
    connection: sqlite3.Connection,
    run: str,
    attempt: int,
    records: Sequence[NodeRecord],
    suspects: Sequence[NodeRecord],
    texts: Mapping[int, Mapping[str, str]],
    unreachable: Mapping[int, float],
) -> Problem | None:
    """Return the cause where the logs only say that another rank was gone: a supervisor or a rank was killed, a node is
    lost, or a rank did not take part in a collective."""
    without_supervisor = next((record for record in records if _end_of_supervisor(record)), None)
    if without_supervisor is not None:
        return supervisor_gone(without_supervisor, rebooted=_end_of_supervisor(without_supervisor) == "restart")
    # The other nodes end their ranks too, by SIGKILL if need be.
    by_kernel = sorted(suspects, key=lambda record: not _oom_kills(record))
    killed = next((record for record in by_kernel if _was_killed(record, texts[record.rank])), None)
    if killed is not None:
        return _by_exit(killed, texts[killed.rank])
    if unreachable:
        return node_lost(records[max(unreachable, key=lambda rank: unreachable[rank])], max(unreachable.values()))
    return waiting_ranks.waited_for(connection, run, attempt, records)


def _stuck(connection: sqlite3.Connection, run: str, attempt: int, records: Sequence[NodeRecord]) -> Problem | None:
    """Return the problem of a node whose processes make no progress while the others wait for them; else None."""
    beats = {rank: beat for rank, (_, beat) in metrics.newest_heartbeats(connection, run, attempt).items()}
    stopped = _stopped_since_the_last_step(connection, run, attempt, records)
    for record in records:
        reports = (record.exit, beats.get(record.rank))
        stuck = next(
            (stuck for report in reports if report and (stuck := report.get("stuck"))), stopped.get(record.rank)
        )
        if stuck:
            return problem_of(
                "process_stuck",
                record,
                _logs_of_ranks(connection, run, attempt, record, stuck),
                processes=stuck_words(stuck),
            )
    return None


def _stopped_since_the_last_step(
    connection: sqlite3.Connection, run: str, attempt: int, records: Sequence[NodeRecord]
) -> dict[int | None, Sequence[Stuck]]:
    """Return node rank -> its stopped processes. Its supervisor wakes them to end them, before it reports them."""
    newest = metrics.newest_points(connection, run, attempt, count=1)
    since = newest[0].time - records[0].clock_offset_s if newest else 0.0
    reports = [event for event in run_store.events(connection, run) if event.kind is EventKind.NODE_STUCK]
    newer = [event for event in reports if event.attempt == attempt and event.time > since]
    return {
        event.rank: stuck
        for event in newer
        if (stuck := [process for process in event.detail.get("stuck", ()) if process[2] != "D"])
    }


def _logs_of_ranks(
    connection: sqlite3.Connection, run: str, attempt: int, record: NodeRecord, stuck: Sequence[Stuck]
) -> dict[str, str]:
    """Return the logs of the ranks that make no progress, where the supervisor knows them."""
    named = {f"rank{rank}.log" for _, _, _, rank in stuck}
    return {file: text for file, text in logs_of(connection, run, attempt, record.rank).items() if file in named}


def node_lost(record: NodeRecord, seconds: float) -> Problem:
    """Return the problem of a node that has not answered for this time."""
    return Problem(code="node_lost", node=record.address, values={"node": record.address, "seconds": round(seconds)})


def supervisor_gone(record: NodeRecord, *, rebooted: bool) -> Problem:
    """Return the problem of a node without a supervisor: it was killed, or the machine restarted."""
    code = "node_restarted" if rebooted else "supervisor_gone"
    return Problem(code=code, node=record.address, values={"node": record.address})


def _end_of_supervisor(record: NodeRecord) -> str:
    """Return what ended the node's supervisor, from its exit record or from the answer to a stop."""
    ended = record.exit or (record.stop["exit"] if record.stop and "exit" in record.stop else None)
    return ended.get("gone", "") if ended else ""


def _first_causes(
    suspects: Sequence[NodeRecord], texts: Mapping[int, Mapping[str, str]], evidence: list[_Evidence]
) -> Iterator[_Evidence]:
    """Yield the evidence of first causes, the earliest suspect first. Add all evidence to the list."""
    for record in suspects:
        if best := _evidence(record, texts[record.rank]):
            evidence.append(best)
            if best.is_first_cause:
                yield best


def _evidence(record: NodeRecord, logs: Mapping[str, str]) -> _Evidence | None:
    """Return the cause that a node's logs show best, the log of the blamed rank first."""
    best: _Evidence | None = None
    for file, text in logs.items():
        probable = log_causes.probable(log_causes.matches(text))
        if probable and (best is None or probable[0].order[0] < best.match.order[0]):
            others = tuple(match.cause.code for match in probable[1:])
            best = _Evidence(record=record, file=file, text=text, match=probable[0], others=others)
    return best


def _named(evidence: _Evidence) -> Problem:
    """Return the problem of a known cause, with the line that shows it."""
    match = evidence.match
    if match.cause.code == "killed" and _oom_kills(evidence.record):
        return _host_out_of_memory(evidence.record, {evidence.file: evidence.text})
    _, lines = log_causes.last_lines({evidence.file: evidence.text})
    if match.line not in lines:
        lines = log_causes.around(evidence.text, match.number, before=LINES_BEFORE, after=LINES_AFTER)
    rank = RANK_LOG.fullmatch(evidence.file)
    values = {
        "detail": match.line,
        "wanted": "",
        **match.values,
        "line": match.line,
        "is_certain": match.is_certain,
        **({"others": list(evidence.others)} if evidence.others else {}),
        **({"of_rank": int(rank["rank"])} if rank else {}),
    }
    problem = problem_of(match.cause.code, evidence.record, {evidence.file: evidence.text}, **values)
    return replace(problem, values={**problem.values, "lines": lines})


def _by_exit(record: NodeRecord, logs: Mapping[str, str]) -> Problem:
    ended: Exit = record.exit or {}
    if ended.get("disk_full"):  # no program could write to the disk that it was full
        return problem_of("disk_full", record, logs)
    if ended.get("reason") in _CODE_OF_REASON:
        detail = log_causes.last_lines(logs)[1]
        return problem_of(_CODE_OF_REASON[ended["reason"]], record, logs, detail=detail, run="?")
    if _was_killed(record, logs) and _oom_kills(record):
        return _host_out_of_memory(record, logs)
    if _was_killed(record, logs):
        return problem_of("killed", record, logs, exit=ended.get("code"))
    problem = problem_of("training_failed", record, logs, exit=ended.get("code"))
    return replace(problem, values={**problem.values, "lines": log_causes.first_lines(logs)[1]})


def _is_consequence(logs: Mapping[str, str]) -> bool:
    """Return whether the last lines say that another rank was gone. Then they name no cause."""
    return bool(log_causes.CONSEQUENCES.search(log_causes.last_lines(logs)[1]))


def _oom_kills(record: NodeRecord) -> int:
    return (record.exit or {}).get("oom_kills", 0)


def _host_out_of_memory(record: NodeRecord, logs: Mapping[str, str]) -> Problem:
    return problem_of("host_out_of_memory", record, logs, detail=f"oom_kill {_oom_kills(record)}")


def _was_killed(record: NodeRecord, logs: Mapping[str, str]) -> bool:
    killed = (record.exit or {}).get("signal") == 9
    return killed or any("exitcode  : -9" in text or "Signal 9 (SIGKILL)" in text for text in logs.values())


_CODE_OF_REASON = {
    "stalled": "stalled",
    "lock_held": "node_locked",
    "start_failed": "start_failed",
    UNREADABLE: "exit_unreadable",
}


def _has_stalled(record: NodeRecord) -> bool:
    """Return whether the supervisor ended the node because of a stall. Then torchrun's report of the signal is no
    cause.
    """
    return (record.exit or {}).get("reason") == "stalled"


def _loss_is_lost(connection: sqlite3.Connection, run: str, attempt: int) -> bool:
    newest = metrics.newest_points(connection, run, attempt, count=20)
    losses = [point.loss for point in newest if point.loss is not None]
    return bool(losses) and not math.isfinite(losses[-1])
