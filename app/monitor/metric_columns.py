"""Last and best value of one metric for each run of the list."""

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from backend.runs.api import describe
from backend.runs.database import Database, Reader
from backend.runs.records import RunSummary

LOSS = "loss"
READ_AT_ONCE = 25
"""Runs whose loss is read for one answer. A long list gets the rest with the next answers."""


class Values(NamedTuple):
    """The newest value of a metric, and the best one; None where it is not known which direction is better."""

    last: float
    best: float | None


class MetricColumns:
    """Reads the values from the store. It keeps the best loss of ended runs. Safe for many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._ended: dict[tuple[str, float | None], float | None] = {}
        """By run and the time of its end: a resumed run ends again."""

    def names(self) -> list[str]:
        """Return the names of the metrics that the list can show: the loss, and what runs have logged."""
        with self._database.read() as reader:
            return [LOSS, *reader.metric_names()]

    def values(self, runs: Sequence[RunSummary], name: str) -> Mapping[str, Values]:
        """Return run -> values. A run without the metric has none."""
        with self._database.read() as reader:
            if name == LOSS:
                return self._losses(reader, runs)
            better = describe(name).better
            return {
                run: Values(last, lowest if better == "lower" else highest if better == "higher" else None)
                for run, (last, lowest, highest) in reader.metric_summaries(name).items()
            }

    def _losses(self, reader: Reader, runs: Sequence[RunSummary]) -> dict[str, Values]:
        values: dict[str, Values] = {}
        count = 0
        for run in runs:
            if run.loss is None:
                continue
            key = (run.id, run.ended)
            with self._lock:
                is_known = run.state.is_final and key in self._ended
                best = self._ended.get(key) if is_known else None
            if not is_known and count < READ_AT_ONCE:
                count += 1
                best = _lowest_loss(reader, run.id)
                if run.state.is_final:
                    with self._lock:
                        self._ended[key] = best
            values[run.id] = Values(run.loss, best)
        return values


def _lowest_loss(reader: Reader, run: str) -> float | None:
    """Return the lowest logged loss. The curve has the extremes of every bucket."""
    _, losses = reader.curves(run, reader.curve_state(run))["loss"]
    return float(losses.min()) if len(losses) else None
