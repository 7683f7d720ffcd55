"""Activity of ranks by CPU time and memory. A rank that only waits uses no CPU and no more memory."""

from __future__ import annotations

import os
from typing import Iterable, NamedTuple

from .processes import Process, rank_of, read_stat

WORK_SHARE = 0.05
"""Part of a core between two scans. The watching threads of an idle rank use less."""
WORK_BYTES = 1 << 20
"""Memory that is allocated or freed between two scans."""


class Used(NamedTuple):
    seconds: float
    """CPU time since the start of the process."""
    resident: int
    """Bytes of memory."""


class Work:
    """Time of the last activity of each rank's processes, by the monotonic clock."""

    def __init__(self) -> None:
        self.scanned = 0.0
        self.used = {}  # type: dict[tuple[int, int], Used]
        self.last = {}  # type: dict[int | None, float]

    def note(self, processes: Iterable[Process], now: float) -> None:
        """Record a scan. A process that is new, or waits in the kernel for files, is active too."""
        passed_s, self.scanned = now - self.scanned, now
        before, self.used = self.used, {}
        last = {}  # type: dict[int | None, float]
        for process in processes:
            identity, used, rank = (process.pid, process.start), used_by(process.pid), rank_of(process.pid)
            if used is None:
                continue
            self.used[identity] = used
            if identity not in before or process.state == "D" or is_work(before[identity], used, passed_s):
                last[rank] = now
            else:
                last.setdefault(rank, self.last.get(rank, now))
        self.last = last

    def last_active(self, zero: float) -> list[list[float | int | None]]:
        """Return [rank, epoch] of each rank. `zero` is the epoch of the clock's 0.

        Rank None is torchrun and the programs before it.
        """
        return [[rank, round(zero + when, 1)] for rank, when in self.last.items()]


def is_work(before: Used, after: Used, passed_s: float) -> bool:
    """Return whether a process was active between two scans."""
    return (
        after.seconds - before.seconds >= WORK_SHARE * passed_s or abs(after.resident - before.resident) >= WORK_BYTES
    )


def used_by(pid: int) -> Used | None:
    """Return CPU time and memory. None: the process has ended."""
    _, values = read_stat(pid)
    if not values:
        return None
    seconds = (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    return Used(seconds, int(values[21]) * os.sysconf("SC_PAGE_SIZE"))
