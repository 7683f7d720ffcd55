"""Finds the ranks that caused a collective to time out, from what torch's NCCL watchdogs write into the logs.

A rank whose wait timed out names the operation and the group in which it waited. Every rank names the number of
operations that it had begun in the default group. The source is torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
(logPrefix, WorkNCCL::checkTimeout, watchdogHandler, getNCCLWatchdogTimeoutErrorMsg); torch 2.3 to 2.10 write three
forms. The cause is a rank that others wait for and that waits for nobody.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from backend.job.job import Job

Why = Literal["absent", "differ", "hung"]
"""absent: some ranks did not join. differ: ranks joined different operations. hung: as far as is known, all joined."""
MOST = 8
"""More absent ranks than this are not the cause."""

_GROUP = r"\[PG (?:ID \d+ PG GUID )?(?P<group>[^\s(\]]+) ?(?:\((?P<kind>[^)]*)\) ?)?Rank \d+\]"
_BEGUN = re.compile(rf"{_GROUP}.*?[Ll]ast enqueued (?:NCCL )?work: (?P<begun>-?\d+), last completed")
_LATE = re.compile(rf"{_GROUP}.*?(?:at work|at NCCL work|work sequence id): (?P<late>\d+)\b")
_WAITED = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<late>\d+), OpType=(?P<operation>\w+),"
    r".*?\) ran for (?P<waited_ms>\d+) milliseconds"
)
_BETWEEN_TWO = frozenset({"SEND", "RECV", "COALESCED", "RECVANYSOURCE"})
"""Operations between pipeline stages. The other ranks of the group take no part in them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """A collective in which the wait of a rank timed out."""

    group: str
    kind: str
    """megatron-core's name of the group; empty without a name."""
    number: int
    """Number of the operation in its group."""
    operation: str
    waited_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchdogMessages:
    """The watchdog messages of one rank."""

    waits: tuple[Wait, ...] = ()
    begun: Mapping[str, int] = field(default_factory=dict)
    """Group -> number of the newest operation that the rank had begun."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The cause of a timeout of a collective."""

    why: Why
    ranks: tuple[int, ...]
    """The ranks that did not join, or those that waited."""
    operations: tuple[str, ...]
    waited_s: float
    waiting: int
    """Number of ranks whose wait timed out."""


def read(log: str) -> WatchdogMessages:
    """Return the watchdog messages in a rank's log."""
    waited = {int(match["late"]): match for match in _WAITED.finditer(log)}
    timed_out = {(match["group"], match["kind"] or "", int(match["late"])) for match in _LATE.finditer(log)}
    waits = [
        Wait(
            group=group,
            kind=kind,
            number=number,
            operation=waited[number]["operation"].strip("_"),
            waited_s=int(waited[number]["waited_ms"]) / 1000,
        )
        for group, kind, number in sorted(timed_out)
        if number in waited
    ]
    return WatchdogMessages(
        waits=tuple(waits), begun={match["group"]: int(match["begun"]) for match in _BEGUN.finditer(log)}
    )


def judge(messages: Mapping[int, WatchdogMessages], job: Job) -> Verdict:
    """Return the cause that the messages of all ranks show. At least one wait must have timed out."""
    waits = {rank: message.waits for rank, message in messages.items() if message.waits}
    all_waits = [wait for rank_waits in waits.values() for wait in rank_waits]
    absent: set[int] = set()
    for group in sorted({wait.group for wait in all_waits}):
        group_waits = {rank: wait for rank, rank_waits in waits.items() for wait in rank_waits if wait.group == group}
        number = min(wait.number for wait in group_waits.values())
        first_waits = {rank: wait for rank, wait in group_waits.items() if wait.number == number}
        operations = {wait.operation for wait in first_waits.values()}
        if len(operations) > 1 and not operations & _BETWEEN_TWO:
            return _verdict("differ", first_waits, first_waits.values(), waits)
        absent |= _absent(messages, job, group, number, group_waits)
    absent -= set(waits)
    if 0 < len(absent) <= MOST:
        return _verdict("absent", absent, all_waits, waits)
    return _verdict("hung", waits, all_waits, waits)


def _verdict(why: Why, ranks: Iterable[int], about: Collection[Wait], waits: Collection[int]) -> Verdict:
    return Verdict(
        why=why,
        ranks=tuple(sorted(ranks)),
        operations=tuple(sorted({wait.operation for wait in about})),
        waited_s=max(wait.waited_s for wait in about),
        waiting=len(waits),
    )


def _absent(
    messages: Mapping[int, WatchdogMessages], job: Job, group: str, number: int, waits: Mapping[int, Wait]
) -> set[int]:
    """Return the ranks of a group that had not begun the operation in which others waited."""
    newest_numbers = {rank: message.begun[group] for rank, message in messages.items() if group in message.begun}
    joined = {rank for rank, newest in newest_numbers.items() if newest >= number} | set(waits)
    absent = {rank for rank, newest in newest_numbers.items() if newest < number} - joined
    if any(wait.operation in _BETWEEN_TWO for wait in waits.values()):
        return absent
    if 2 * len(joined) > job.world_size:
        # A group with more than half of the ranks contains all ranks.
        return absent | (set(range(job.world_size)) - joined)
    for rank, wait in waits.items():
        absent |= set(_members(job, wait.kind, rank)) - joined
    return absent


def _members(job: Job, kind: str, rank: int) -> Iterable[int]:
    """Return the ranks of a rank's megatron-core group. Rank order: tp-cp-ep-dp-pp, for experts etp-ep-dp-pp."""
    if not job.traits.is_megatron:
        return ()
    plan, data = job.parallel, job.data_parallel
    dense = plan.tensor * plan.context
    groups = {
        "TENSOR_MODEL_PARALLEL_GROUP": (plan.tensor, 1),
        "CONTEXT_PARALLEL_GROUP": (plan.context, plan.tensor),
        "DATA_PARALLEL_GROUP": (data, dense),
        "DATA_PARALLEL_GROUP_WITH_CP": (data * plan.context, plan.tensor),
        "EXPERT_MODEL_PARALLEL_GROUP": (plan.expert, plan.expert_tensor),
        "EXPERT_TENSOR_PARALLEL_GROUP": (plan.expert_tensor, 1),
        "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": (plan.expert_tensor * plan.expert, 1),
    }
    if kind not in groups:
        return ()
    size, stride = groups[kind]
    begin = rank - rank // stride % size * stride
    return range(begin, begin + size * stride, stride)
