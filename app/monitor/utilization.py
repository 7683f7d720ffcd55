"""How busy the nodes of a run were over its time, for one chart: of each node only the stretches that the tab lacks."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.monitor.json_parts import to_json
from app.monitor.poll_request import UsageQuestion
from app.monitor.shared_answers import Shared
from backend.runs.api import ROWS, Measured, Stretch
from backend.runs.database import Database, Reader

MEASURES = ("utilization", "memory", "power", "load", "host_memory")
"""In the order of their buttons; the first that a node of the run tells is shown at first."""
_WORST = {"utilization": min, "memory": max, "power": min}
"""The GPU of a node that is named beside its mean: the one that lags, or the one that will be full first."""


FRESH_S = 1.0
"""Two tabs that lack the same within this time get the same answer."""
ANSWERS_KEPT = 16
MOST_ROWS = 16_384
"""Rows that a chart is sent at once; with more nodes, each one's stretches are wider."""
ROWS_KEPT = 1024
"""Nodes, each with one measure, whose rows stay in memory: 60 kB each at most."""


class Usage:
    """The answers of one store, for any number of threads."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._answers: Shared[str | None] = Shared(clock, fresh_s=FRESH_S, kept=ANSWERS_KEPT)
        self._lock = threading.Lock()
        self._rows: OrderedDict[tuple[str, int, str], _Rows] = OrderedDict()

    def part(self, run: str, ranks: Sequence[int], asked: UsageQuestion | None) -> str | None:
        """JSON of the stretches that the tab needs for the measure it shows; None if it needs none or does not ask.

        `from` names the newest stretch that the tab has, which may have grown; without `from` the answer is complete.
        """
        if asked is None:
            return None
        key = (run, asked.measure, tuple(sorted(asked.have.items())))
        return self._answers.get(key, lambda: self._part(run, ranks, asked))

    def _part(self, run: str, ranks: Sequence[int], asked: UsageQuestion) -> str | None:
        with self._database.read() as reader:
            newest = {rank: one for rank in ranks if (one := reader.newest_utilization(run, rank))}
            told = [name for name in MEASURES if any(name in one.measures for one in newest.values())]
            if not told:
                return None
            measure = asked.measure if asked.measure in told else told[0]
            have = asked.have if measure == asked.measure else {}
            marks = {rank: _mark(one, _joined(len(newest))) for rank, one in newest.items()}
            nodes = [
                self._node(reader, run, rank, measure, mark, have.get(rank))
                for rank, mark in marks.items()
                if have.get(rank) != mark
            ]
        head = to_json({"measure": measure, "measures": told})[:-1]
        return f'{head},"nodes":[{",".join(nodes)}]}}' if nodes else None

    def _node(
        self,
        reader: Reader,
        run: str,
        rank: int,
        measure: str,
        mark: tuple[int, int, int],
        has: tuple[int, ...] | None,
    ) -> str:
        head: dict[str, Any] = {"rank": rank, "have": mark}
        if has and has[0] == mark[0]:
            head["from"] = has[1]
            rows = ",".join(_rows(reader, run, rank, measure, mark[0], has[1])[1])
        else:
            rows = self._whole(reader, run, rank, measure, mark[0])
        return f'{to_json(head)[:-1]},"rows":[{rows}]}}'

    def _whole(self, reader: Reader, run: str, rank: int, measure: str, width: int) -> str:
        """All rows of a node; rows that no longer change are made once."""
        key = (run, rank, measure)
        with self._lock:
            kept = self._rows.get(key)
        if kept is None or kept.width != width:
            kept = _Rows(width=width, until=0, texts=())
        starts, texts = _rows(reader, run, rank, measure, width, kept.until)
        if starts:
            kept = _Rows(width=width, until=starts[-1], texts=(*kept.texts, *texts[:-1]))
        with self._lock:
            self._rows[key] = kept
            self._rows.move_to_end(key)
            while len(self._rows) > ROWS_KEPT:
                self._rows.popitem(last=False)
        return ",".join((*kept.texts, *texts[-1:]))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """The rows of a node that begin before `until`, as JSON; they have that width and no longer change."""

    width: int
    until: int
    texts: tuple[str, ...]


def _rows(reader: Reader, run: str, rank: int, measure: str, width: int, since: int) -> tuple[list[int], list[str]]:
    """Return the starts and the rows as JSON of the stretches from `since` on."""
    told = reader.utilization(run, rank, measure, width=width, since=since)
    return [start for start, _ in told], [to_json(_row(start, one, measure)) for start, one in told]


def _joined(nodes: int) -> int:
    """Return how many stretches of a node are sent as one: a power of two, and 1 for up to 34 nodes."""
    return 1 << max(0, math.ceil(math.log2(nodes * ROWS / MOST_ROWS)))


def _mark(newest: Stretch, joined: int) -> tuple[int, int, int]:
    """Return (width, start of the newest row, a number that changes with every heartbeat) of a node's rows."""
    width = newest.width * joined
    return width, newest.start // width * width, newest.start + newest.beats


def _row(start: int, told: Measured, measure: str) -> list[Any]:
    """Return [start, mean, lowest, highest]; for several GPUs also the value and the index of the worst GPU."""
    mean = sum(told.devices.values()) / len(told.devices)
    row: list[Any] = [start, *(float(f"{value:.4g}") for value in (mean, told.low, told.high))]
    if len(told.devices) > 1 and measure in _WORST:
        worst = _WORST[measure](told.devices, key=lambda name: told.devices[name])
        row += [float(f"{told.devices[worst]:.4g}"), int(worst)]
    return row
