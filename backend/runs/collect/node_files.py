"""The files that a node writes for a run, and the new bytes of one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from backend.runs.collect.node_records import ReadLines
from backend.runs.store.metrics import FileOffset

OTHER_RANKS_EVERY = 5
"""Polls between two reads of a rank that is not its node's first. A read costs 1 ms of processor time, and 32 nodes of
8 ranks have 608 files.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFile:
    """A file in the run folder of a node, and the kind of its records."""

    file: str
    kind: Literal["points", "heartbeats", "log", "trainer_log", "megatron_log", "tensorboard"]
    """The last three belong to an external run. megatron_log is also shown as a log."""
    rank: int = 0
    """Global rank of the points."""
    every: int = 1
    """The file is read at every n-th poll."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """New bytes of one file. They begin at `start` and end at `after`; `before` is the offset in the store."""

    source: RecordFile
    before: FileOffset
    start: FileOffset
    after: FileOffset
    data: bytes
    whole: bool
    """Whether the file was read to its end."""
    lines: ReadLines
    """The records in the data; empty for a log."""


def files_of(ranks: Sequence[int]) -> tuple[RecordFile, ...]:
    """Return the files of a node with these global ranks. The files of its first rank are read at every poll, the
    others less often.
    """
    files = [RecordFile(file="heartbeat.jsonl", kind="heartbeats"), RecordFile(file="out.log", kind="log")]
    for rank in ranks:
        every = 1 if rank == ranks[0] else OTHER_RANKS_EVERY
        files.append(RecordFile(file=f"steps.rank{rank}.jsonl", kind="points", rank=rank, every=every))
        files.append(RecordFile(file=f"rank{rank}.log", kind="log", every=every))
    return tuple(files)
