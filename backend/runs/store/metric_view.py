"""Reads logged metrics for a chart: a few values for any range of steps.

A later attempt replaces all steps from its first step on.
"""

import math
import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from backend.runs.store import attempts, logged_metrics, metric_levels
from backend.runs.store.curve_buckets import Floats, Steps, candidates
from backend.runs.store.curve_levels import LEVELS
from backend.runs.store.curve_view import END, LEAST_BUCKETS
from backend.runs.store.logged_metrics import SeriesRow
from backend.runs.store.metric_levels import Key

MOST_VALUES = 8 * LEAST_BUCKETS
"""Values that a view reads themselves. Of more values, it reads the widest level with enough buckets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Steps `first` to `last` of an attempt, which are on the curve."""

    row: SeriesRow
    first: int
    last: int

    @property
    def is_cut(self) -> bool:
        """Return whether a later attempt replaces its end."""
        return self.last < self.row.last_step


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One name that a run logs, over all attempts."""

    run: str
    name: str
    version: int
    """Changes when values were removed or replaced. With an equal version, all new values come after `last_step`."""
    segments: tuple[Segment, ...]
    last: float
    """The newest value on the curve. May be NaN or infinite, and is NaN without a value."""

    @property
    def last_step(self) -> int:
        """Return the step of the newest value; -1 while a later attempt has replaced all values."""
        return self.segments[-1].last if self.segments else -1

    @property
    def count(self) -> int:
        """Return the number of values, also of replaced steps."""
        return sum(segment.row.count for segment in self.segments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Extremes:
    """The lowest and the highest value on the curve of a metric, and their steps."""

    lowest: float
    lowest_step: int
    highest: float
    highest_step: int


def metrics_of(
    connection: sqlite3.Connection, run: str, *, rank: int = 0, only: str | None = None
) -> dict[str, Metric]:
    """Return the metrics of a run by name, or the metric `only`."""
    rows: dict[str, list[SeriesRow]] = {}
    for row in logged_metrics.series_rows(connection, run, rank=rank):
        if only in (None, row.name):
            rows.setdefault(row.name, []).append(row)
    begins = _first_steps(connection, run, rank) if rows else {}
    return {name: _metric(connection, run, name, of_name, begins, rank) for name, of_name in rows.items()}


def view(
    connection: sqlite3.Connection,
    metric: Metric,
    first: int = 0,
    last: int = END,
    *,
    rank: int = 0,
    least: int = LEAST_BUCKETS,
) -> tuple[Steps, Floats]:
    """Return the finite values to draw for the steps `first` to `last`: all, or extremes and ends of each bucket."""
    shown = [segment for segment in metric.segments if segment.last >= first and segment.first <= last]
    begin = max(first, min((segment.first for segment in shown), default=0))
    end = min(last, max((segment.last for segment in shown), default=0))
    level = sum((end - begin) >> bits >= least for bits in LEVELS) if metric.count > MOST_VALUES else 0
    parts = [
        _read(connection, metric, segment, max(first, segment.first), min(last, segment.last), level, rank)
        for segment in shown
    ]
    steps = np.concatenate([part[0] for part in parts]) if parts else np.empty(0, dtype=np.int64)
    values = np.concatenate([part[1] for part in parts]) if parts else np.empty(0)
    is_finite = np.isfinite(values)
    return steps[is_finite], values[is_finite]


def news(connection: sqlite3.Connection, metric: Metric, after: int, *, rank: int = 0) -> tuple[Steps, Floats]:
    """Return the finite values after a step. The caller has the earlier ones of the same version."""
    if not metric.segments:
        return np.empty(0, dtype=np.int64), np.empty(0)
    key = Key(run=metric.run, attempt=metric.segments[-1].row.attempt, rank=rank, name=metric.name)
    steps, values = metric_levels.read_values(connection, key, after + 1)
    is_finite = np.isfinite(values)
    return steps[is_finite], values[is_finite]


def extremes(connection: sqlite3.Connection, metric: Metric, *, rank: int = 0) -> Extremes | None:
    """Return the extremes of a metric; None without a finite value. Only cut attempts cost a read of values."""
    lows, highs = [], []
    for segment in metric.segments:
        if segment.is_cut:
            key = Key(run=metric.run, attempt=segment.row.attempt, rank=rank, name=metric.name)
            steps, values = metric_levels.read_values(connection, key, segment.first, segment.last)
            finite = [(v, int(s)) for s, v in zip(steps, values.tolist(), strict=True) if math.isfinite(v)]
            lows += finite
            highs += finite
        elif segment.row.lowest is not None and segment.row.highest is not None:
            lows.append((segment.row.lowest, segment.row.lowest_step or 0))
            highs.append((segment.row.highest, segment.row.highest_step or 0))
    if not lows:
        return None
    (low, low_step), (high, high_step) = min(lows), max(highs, key=lambda high: (high[0], -high[1]))
    return Extremes(lowest=low, lowest_step=low_step, highest=high, highest_step=high_step)


def summaries(connection: sqlite3.Connection, name: str) -> dict[str, tuple[float, float | None, float | None]]:
    """Return run -> (last, lowest, highest) value on the curve of a metric, of every run that has logged it."""
    values = {}
    for run in logged_metrics.runs_with(connection, name):
        metric = metrics_of(connection, run, only=name)[name]
        least_and_most = extremes(connection, metric)
        lowest, highest = (least_and_most.lowest, least_and_most.highest) if least_and_most else (None, None)
        values[run] = (metric.last, lowest, highest)
    return values


def _metric(
    connection: sqlite3.Connection, run: str, name: str, rows: Sequence[SeriesRow], begins: dict[int, int], rank: int
) -> Metric:
    segments: list[Segment] = []
    cut, last = END, math.nan
    for attempt in range(max([*begins, rows[-1].attempt]), 0, -1):
        row = next((series for series in rows if series.attempt == attempt), None)
        if row is not None and row.first_step <= cut:
            segment = Segment(row=row, first=row.first_step, last=min(row.last_step, cut))
            if not segments:
                segment, last = _with_last(connection, run, name, segment, rank)
            segments.append(segment)
        begin = min(begins.get(attempt, END), row.first_step if row is not None else END)
        cut = min(cut, begin - 1)
    segments.reverse()
    state = [
        (segment.row.attempt, segment.row.generation, segment.first, segment.last if segment.is_cut else END)
        for segment in segments
    ]
    return Metric(run=run, name=name, version=zlib.crc32(repr(state).encode()), segments=tuple(segments), last=last)


def _with_last(
    connection: sqlite3.Connection, run: str, name: str, segment: Segment, rank: int
) -> tuple[Segment, float]:
    """Return the newest segment with its last step, and the value there. Only a cut one costs a seek."""
    if not segment.is_cut:
        return segment, segment.row.last
    key = Key(run=run, attempt=segment.row.attempt, rank=rank, name=name)
    row = connection.execute(
        f"SELECT step, value FROM metrics WHERE {key.condition} AND step <= ? ORDER BY step DESC LIMIT 1",  # noqa: S608
        (*key.values, segment.last),
    ).fetchone()
    return replace(segment, last=row["step"]), float(row["value"])


def _first_steps(connection: sqlite3.Connection, run: str, rank: int) -> dict[int, int]:
    """Return attempt -> first step of its points, with one seek each."""
    query = "SELECT min(step) FROM points WHERE run = ? AND attempt = ? AND rank = ?"
    steps = {
        attempt: connection.execute(query, (run, attempt, rank)).fetchone()[0]
        for attempt in range(1, attempts.newest(connection, run) + 1)
    }
    return {attempt: step for attempt, step in steps.items() if step is not None}


def _read(
    connection: sqlite3.Connection, metric: Metric, segment: Segment, first: int, last: int, level: int, rank: int
) -> tuple[Steps, Floats]:
    """Return the values of a part of a segment. After the last whole bucket, it reads the values themselves."""
    key = Key(run=metric.run, attempt=segment.row.attempt, rank=rank, name=metric.name)
    if level == 0:
        return metric_levels.read_values(connection, key, first, last)
    bits = LEVELS[level - 1]
    # The levels end at levels_step, and a later attempt may cut the segment inside a bucket.
    whole = (min(segment.row.levels_step, last if segment.is_cut else segment.row.last_step) + 1) >> bits
    _, buckets = metric_levels.read(connection, key, bits, first >> bits, min(last >> bits, whole - 1))
    steps, values = candidates(buckets, 0)
    rest = max(first, whole << bits)
    if rest > last:
        return steps, values
    more_steps, more_values = metric_levels.read_values(connection, key, rest, last)
    return np.concatenate((steps, more_steps)), np.concatenate((values, more_values))
