"""Last and best value of one metric for each run of the list."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from backend.runs.api import describe
from backend.runs.database import Database, Reader
from backend.runs.records import RunSummary

LOSS = "loss"
READ_AT_ONCE = 25
"""Runs whose values are read for one answer. A long list gets the rest with the next answers."""


class Values(NamedTuple):
    """The newest value of a metric, and the best one; None where it is not known which direction is better."""

    last: float
    best: float | None


Bounds = tuple[float, float] | None
"""Lowest and highest value; None without a finite one."""


class MetricColumns:
    """Reads the values from the store. It keeps the best values of ended runs. Safe for many threads.

    Steps that a resumed run trained again do not count.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._ended: dict[tuple[str, float | None, str], Bounds] = {}
        """By run, time of its end (a resumed run ends again) and metric."""

    def names(self) -> list[str]:
        """Return the names of the metrics that the list can show: the loss, and what runs have logged."""
        with self._database.read() as reader:
            return [LOSS, *reader.metric_names()]

    def values(self, runs: Sequence[RunSummary], name: str) -> Mapping[str, Values]:
        """Return run -> values. A run without the metric has none."""
        with self._database.read() as reader:
            if name == LOSS:
                losses = {run.id: run.loss for run in runs if run.loss is not None}
                bounds = self._bounds(
                    [run for run in runs if run.id in losses], LOSS, lambda run: _of_loss(reader, run)
                )
                return {run: Values(loss, _best(bounds.get(run), "lower")) for run, loss in losses.items()}
            better = describe(name).better
            summaries, resumed = reader.metric_summaries(name), reader.resumed_runs()
            again = [run for run in runs if run.id in summaries and run.id in resumed]
            bounds = self._bounds(again, name, lambda run: _of_metric(reader, run, name))
            return {
                run: Values(last, _best(bounds.get(run) if run in resumed else (lowest, highest), better))
                for run, (last, lowest, highest) in summaries.items()
            }

    def _bounds(self, runs: Sequence[RunSummary], name: str, read: Callable[[str], Bounds]) -> dict[str, Bounds]:
        bounds: dict[str, Bounds] = {}
        count = 0
        for run in runs:
            key = (run.id, run.ended, name)
            with self._lock:
                is_known = run.state.is_final and key in self._ended
                if is_known:
                    bounds[run.id] = self._ended[key]
            if not is_known and count < READ_AT_ONCE:
                count += 1
                bounds[run.id] = read(run.id)
                if run.state.is_final:
                    with self._lock:
                        self._ended[key] = bounds[run.id]
        return bounds


def _best(bounds: tuple[float | None, float | None] | None, better: str | None) -> float | None:
    lowest, highest = bounds or (None, None)
    return lowest if better == "lower" else highest if better == "higher" else None


def _of_loss(reader: Reader, run: str) -> Bounds:
    """Return the bounds of the logged loss. The curve has the extremes of every bucket."""
    _, losses = reader.curves(run, reader.curve_state(run))["loss"]
    return (float(losses.min()), float(losses.max())) if len(losses) else None


def _of_metric(reader: Reader, run: str, name: str) -> Bounds:
    """Return the bounds of a metric on the curve of the run, without the steps that were trained again."""
    metric = reader.metrics(run).get(name)
    found = reader.metric_extremes(metric) if metric else None
    return (found.lowest, found.highest) if found else None
