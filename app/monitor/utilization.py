"""Utilization of the nodes of a run over time for one chart. An answer has only the stretches that the tab needs."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.monitor.json_parts import to_json
from app.monitor.poll_request import UtilizationRequest
from app.monitor.shared_answers import Shared
from backend.runs.api import ROWS, Measured, Stretch
from backend.runs.database import Database, Reader

MEASURES = ("utilization", "memory", "power", "load", "host_memory")
"""Measures in the order of their buttons. The first that a node of the run reports is the default."""
_WORST = {"utilization": min, "memory": max, "power": min}
"""How to select the GPU that is shown beside a node's mean: the slowest, or the one that will be full first."""


FRESH_S = 1.0
"""Equal requests of tabs within this time get the same answer."""
ANSWERS_KEPT = 16
MAX_ROWS = 16_384
"""Maximum rows of an answer. With more nodes, the stretches of each node are wider."""
ROWS_KEPT = 1024
"""Maximum pairs of node and measure whose rows stay in memory, each at most 60 kB."""


class UtilizationAnswers:
    """Answers from one store. Thread-safe."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._answers: Shared[str | None] = Shared(clock, fresh_s=FRESH_S, size=ANSWERS_KEPT)
        self._lock = threading.Lock()
        self._rows: OrderedDict[tuple[str, int, str], _Rows] = OrderedDict()

    def part(self, run: str, ranks: Sequence[int], request: UtilizationRequest | None) -> str | None:
        """Return JSON of the stretches that the tab needs. None if it needs none or does not request any.

        `from` names the newest stretch that the tab has, which may have grown; without `from` the answer is complete.
        """
        if request is None:
            return None
        key = (run, request.measure, tuple(sorted(request.have.items())))
        return self._answers.get(key, lambda: self._part(run, ranks, request))

    def _part(self, run: str, ranks: Sequence[int], request: UtilizationRequest) -> str | None:
        with self._database.read() as reader:
            newest = {rank: stretch for rank in ranks if (stretch := reader.newest_utilization(run, rank))}
            measures = [name for name in MEASURES if any(name in stretch.measures for stretch in newest.values())]
            if not measures:
                return None
            measure = request.measure if request.measure in measures else measures[0]
            have = request.have if measure == request.measure else {}
            marks = {rank: _mark(stretch, _joined(len(newest))) for rank, stretch in newest.items()}
            nodes = [
                self._node(reader, run, rank, measure, mark, have.get(rank))
                for rank, mark in marks.items()
                if have.get(rank) != mark
            ]
        head = to_json({"measure": measure, "measures": measures})[:-1]
        return f'{head},"nodes":[{",".join(nodes)}]}}' if nodes else None

    def _node(
        self,
        reader: Reader,
        run: str,
        rank: int,
        measure: str,
        mark: tuple[int, int, int],
        browser_mark: tuple[int, ...] | None,
    ) -> str:
        head: dict[str, Any] = {"rank": rank, "have": mark}
        if browser_mark and browser_mark[0] == mark[0]:
            head["from"] = browser_mark[1]
            rows = ",".join(_rows(reader, run, rank, measure, mark[0], browser_mark[1])[1])
        else:
            rows = self._all_rows(reader, run, rank, measure, mark[0])
        return f'{to_json(head)[:-1]},"rows":[{rows}]}}'

    def _all_rows(self, reader: Reader, run: str, rank: int, measure: str, width: int) -> str:
        """Return all rows of a node. Rows that no longer change are made once."""
        key = (run, rank, measure)
        with self._lock:
            stored = self._rows.get(key)
        if stored is None or stored.width != width:
            stored = _Rows(width=width, until=0, texts=())
        starts, texts = _rows(reader, run, rank, measure, width, stored.until)
        if starts:
            stored = _Rows(width=width, until=starts[-1], texts=(*stored.texts, *texts[:-1]))
        with self._lock:
            self._rows[key] = stored
            self._rows.move_to_end(key)
            while len(self._rows) > ROWS_KEPT:
                self._rows.popitem(last=False)
        return ",".join((*stored.texts, *texts[-1:]))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """The rows of a node that begin before `until`, as JSON; the rows have that width and no longer change."""

    width: int
    until: int
    texts: tuple[str, ...]


def _rows(reader: Reader, run: str, rank: int, measure: str, width: int, since: int) -> tuple[list[int], list[str]]:
    """Return the starts and the rows as JSON of the stretches from `since` on."""
    stretches = reader.utilization(run, rank, measure, width=width, since=since)
    return [start for start, _ in stretches], [to_json(_row(start, measured, measure)) for start, measured in stretches]


def _joined(nodes: int) -> int:
    """Return how many stretches of a node are sent as one: a power of two, and 1 for up to 34 nodes."""
    return 1 << max(0, math.ceil(math.log2(nodes * ROWS / MAX_ROWS)))


def _mark(newest: Stretch, joined: int) -> tuple[int, int, int]:
    """Return (width, start of the newest row, a number that changes with every heartbeat) of a node's rows."""
    width = newest.width * joined
    return width, newest.start // width * width, newest.start + newest.beats


def _row(start: int, measured: Measured, measure: str) -> list[Any]:
    """Return [start, mean, lowest, highest]; for several GPUs also the value and the index of the worst GPU."""
    mean = sum(measured.devices.values()) / len(measured.devices)
    row: list[Any] = [start, *(float(f"{value:.4g}") for value in (mean, measured.low, measured.high))]
    if len(measured.devices) > 1 and measure in _WORST:
        worst = _WORST[measure](measured.devices, key=lambda name: measured.devices[name])
        row += [float(f"{measured.devices[worst]:.4g}"), int(worst)]
    return row
