"""The curves of one run, kept in memory and grown point by point, so that a tick costs what is new and no more."""

import bisect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.monitor.downsample import LIMIT, downsample
from backend.jobs.records import Point

SMOOTHING = 0.8
"""Weight of the past in the smoothed loss."""

Reader = Callable[[Point], float | None]


@dataclass(slots=True)
class Curve:
    """One series: ascending steps, finite values, and the cursor of the point each came from."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)

    def add(self, point: Point, value: float) -> None:
        """Append the value of a newer point."""
        self.steps.append(point.step)
        self.values.append(value)
        self.seqs.append(point.seq)

    def cut(self, step: int) -> None:
        """Forget everything from a step on."""
        keep = bisect.bisect_left(self.steps, step)
        for column in (self.steps, self.values, self.seqs):
            del column[keep:]

    def whole(self) -> dict[str, list[float]]:
        """At most LIMIT points of the curve."""
        return self._columns(downsample(self.steps, self.values, LIMIT).tolist())

    def after(self, seq: int) -> dict[str, list[float]]:
        """The points newer than a cursor."""
        return self._columns(range(bisect.bisect_right(self.seqs, seq), len(self.seqs)))

    def count_after(self, seq: int) -> int:
        """How many points are newer than a cursor."""
        return len(self.seqs) - bisect.bisect_right(self.seqs, seq)

    def _columns(self, kept: Iterable[int]) -> dict[str, list[float]]:
        kept = list(kept)
        return {"x": [self.steps[i] for i in kept], "y": [_short(self.values[i]) for i in kept]}


@dataclass(slots=True)
class Average:
    """Exponential average, corrected for its start."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> float:
        """Take a value; the average so far."""
        self.total = SMOOTHING * self.total + (1 - SMOOTHING) * value
        self.weight = SMOOTHING * self.weight + (1 - SMOOTHING)
        return self.total / self.weight


class Curves:
    """All series of one run by name: those of `readers`, one of them `loss`, and two that follow from it.

    `loss_smooth` is its average; `loss_bad` marks the steps where it is not finite.
    """

    def __init__(self, readers: Mapping[str, Reader]) -> None:
        self._readers = readers
        self._curves = {name: Curve() for name in (*readers, "loss_smooth", "loss_bad")}
        self._average = Average()
        self.seq = 0
        """Cursor of the newest point taken."""
        self.generation = 0
        """Grows when points were taken back, because a later attempt went over the same steps again."""
        self._step = -1

    def add(self, points: Iterable[Point]) -> None:
        """Take newer points, in the order of their cursors."""
        for point in points:
            if point.step <= self._step:
                self._take_back(point.step)
            for name, read in self._readers.items():
                value = read(point)
                if value is not None and math.isfinite(value):
                    self._curves[name].add(point, value)
            if point.loss is not None:
                self._add_loss(point, point.loss)
            self.seq, self._step = point.seq, point.step

    def to_json(self, generation: int | None, seq: int | None) -> dict[str, Any]:
        """What a browser that has everything up to (generation, seq) lacks; the whole when it has nothing usable."""
        news = {"generation": self.generation, "seq": self.seq}
        if generation != self.generation or seq is None or not 0 <= seq <= self.seq or self._is_long(seq):
            return {**news, "series": {name: curve.whole() for name, curve in self._curves.items()}}
        grown = {name: curve.after(seq) for name, curve in self._curves.items() if curve.count_after(seq)}
        return {**news, "from": seq, "series": grown}

    def _is_long(self, seq: int) -> bool:
        return any(curve.count_after(seq) > LIMIT // 2 for curve in self._curves.values())

    def _add_loss(self, point: Point, loss: float) -> None:
        if not math.isfinite(loss):
            shown = self._curves["loss_smooth"].values
            self._curves["loss_bad"].add(point, shown[-1] if shown else 0.0)
            return
        self._curves["loss_smooth"].add(point, self._average.add(loss))

    def _take_back(self, step: int) -> None:
        self.generation += 1
        for curve in self._curves.values():
            curve.cut(step)
        self._average = Average()
        for loss in self._curves["loss"].values:
            self._average.add(loss)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
