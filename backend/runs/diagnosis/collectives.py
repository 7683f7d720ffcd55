"""Who did not come to a collective that timed out, from what torch's NCCL watchdogs write into the ranks' logs.

Each rank whose patience ended says in which operation of which group it waited, and every rank how many operations it
had begun in the default group (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: logPrefix, WorkNCCL::checkTimeout,
watchdogHandler, getNCCLWatchdogTimeoutErrorMsg; torch 2.3 to 2.10 write it in three forms). A rank that the others wait
for and that waits for nobody is the one to look at.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from backend.job.job import Job

Why = Literal["absent", "differ", "hung"]
"""Ranks did not come; ranks came to different ones; all came, as far as is known."""
MOST = 8
"""More than so many, and it is not they who hold up the others."""

_GROUP = r"\[PG (?:ID \d+ PG GUID )?(?P<group>[^\s(\]]+) ?(?:\((?P<kind>[^)]*)\) ?)?Rank \d+\]"
_BEGUN = re.compile(rf"{_GROUP}.*?[Ll]ast enqueued (?:NCCL )?work: (?P<begun>-?\d+), last completed")
_LATE = re.compile(rf"{_GROUP}.*?(?:at work|at NCCL work|work sequence id): (?P<late>\d+)\b")
_WAITED = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<late>\d+), OpType=(?P<operation>\w+),"
    r".*?\) ran for (?P<waited_ms>\d+) milliseconds"
)
_BETWEEN_TWO = frozenset({"SEND", "RECV", "COALESCED", "RECVANYSOURCE"})
"""Of pipeline stages: the other ranks of their group have nothing to do with them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """A collective that a rank waited in until its patience ended."""

    group: str
    kind: str
    """What megatron-core calls the group; empty where it has no name."""
    number: int
    """Of the operation in its group."""
    operation: str
    waited_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What the watchdogs of one rank said."""

    waits: tuple[Wait, ...] = ()
    begun: Mapping[str, int] = field(default_factory=dict)
    """Group -> the newest operation that the rank had begun there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Why a collective timed out."""

    why: Why
    ranks: tuple[int, ...]
    """Those who did not come, or those who waited."""
    operations: tuple[str, ...]
    waited_s: float
    waiting: int
    """Ranks whose patience ended."""


def read(log: str) -> Said:
    """What a rank's log says."""
    waited = {int(one["late"]): one for one in _WAITED.finditer(log)}
    late = {(one["group"], one["kind"] or "", int(one["late"])) for one in _LATE.finditer(log)}
    waits = [
        Wait(
            group=group,
            kind=kind,
            number=number,
            operation=waited[number]["operation"].strip("_"),
            waited_s=int(waited[number]["waited_ms"]) / 1000,
        )
        for group, kind, number in sorted(late)
        if number in waited
    ]
    return Said(waits=tuple(waits), begun={one["group"]: int(one["begun"]) for one in _BEGUN.finditer(log)})


def judge(said: Mapping[int, Said], job: Job) -> Verdict:
    """What the ranks' words mean together, where somebody's patience ended."""
    waits = {rank: one.waits for rank, one in said.items() if one.waits}
    everywhere = [wait for of_one in waits.values() for wait in of_one]
    absent: set[int] = set()
    for group in sorted({wait.group for wait in everywhere}):
        mine = {rank: wait for rank, of_one in waits.items() for wait in of_one if wait.group == group}
        number = min(wait.number for wait in mine.values())
        at_once = {rank: wait for rank, wait in mine.items() if wait.number == number}
        operations = {wait.operation for wait in at_once.values()}
        if len(operations) > 1 and not operations & _BETWEEN_TWO:
            return _verdict("differ", at_once, at_once.values(), waits)
        absent |= _absent(said, job, group, number, mine)
    absent -= set(waits)
    if 0 < len(absent) <= MOST:
        return _verdict("absent", absent, everywhere, waits)
    return _verdict("hung", waits, everywhere, waits)


def _verdict(why: Why, ranks: Iterable[int], about: Collection[Wait], waits: Collection[int]) -> Verdict:
    return Verdict(
        why=why,
        ranks=tuple(sorted(ranks)),
        operations=tuple(sorted({wait.operation for wait in about})),
        waited_s=max(wait.waited_s for wait in about),
        waiting=len(waits),
    )


def _absent(said: Mapping[int, Said], job: Job, group: str, number: int, waits: Mapping[int, Wait]) -> set[int]:
    """The ranks of a group that had not begun the operation that others waited in."""
    begun = {rank: one.begun[group] for rank, one in said.items() if group in one.begun}
    came = {rank for rank, newest in begun.items() if newest >= number} | set(waits)
    found = {rank for rank, newest in begun.items() if newest < number} - came
    if any(wait.operation in _BETWEEN_TWO for wait in waits.values()):
        return found
    if 2 * len(came) > job.world_size:
        # More than half can only be a group of all.
        return found | (set(range(job.world_size)) - came)
    for rank, wait in waits.items():
        found |= set(_members(job, wait.kind, rank)) - came
    return found


def _members(job: Job, kind: str, rank: int) -> Iterable[int]:
    """The ranks of a rank's group of megatron-core, in its order of ranks: tp-cp-ep-dp-pp, of experts etp-ep-dp-pp."""
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
