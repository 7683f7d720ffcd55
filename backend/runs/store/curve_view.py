"""Reads a run's curves for a chart: a few points for any range of steps (curve_levels.py).

A later attempt replaces all steps from its first step on.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from backend.runs.store.curve_buckets import SERIES, WINDOW, Floats, Steps, candidates, within
from backend.runs.store.curve_levels import (
    LEVELS,
    WAITING_STEPS,
    Part,
    losses_before,
    newest_seq,
    read_level,
    read_parts,
    to_points,
)
from backend.runs.store.curve_points import COLUMNS

LEAST_BUCKETS = 512
"""Least number of points in a view; it has at most sixteen times as many. A view reads the widest level with so many
buckets, else the points themselves.
"""
MOST_WAITING = 4 * WAITING_STEPS
"""Points that a view reads in addition to the levels. More points wait only when an older version stored them."""
END = (1 << 53) - 1

Curves = dict[str, tuple[Steps, Floats]]
"""Series -> ascending steps and their values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """State of the curves of a run."""

    generation: int
    """Grows when points were removed."""
    seq: int
    """Cursor of the newest point that is shown."""
    is_behind: bool
    """Whether many more points are stored. `curve_levels.add_points` must add them first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Steps `first` to `last` of an attempt, which are on the curve."""

    part: Part
    first: int
    last: int


def state(connection: sqlite3.Connection, run: str) -> State:
    """Return the state of the curves of a run."""
    parts = read_parts(connection, run)
    newest = newest_seq(parts)
    rows = connection.execute(
        "SELECT seq FROM points WHERE run = ? AND rank = 0 AND seq > ? ORDER BY seq LIMIT ?",
        (run, newest, MOST_WAITING + 1),
    ).fetchall()
    is_behind = len(rows) > (MOST_WAITING if parts else 0)
    return State(
        generation=sum(part.generation for part in parts),
        seq=rows[-1]["seq"] if rows and not is_behind else newest,
        is_behind=is_behind,
    )


def view(
    connection: sqlite3.Connection,
    run: str,
    upto: State,
    first: int = 0,
    last: int = END,
    *,
    least: int = LEAST_BUCKETS,
) -> Curves:
    """Return the points to draw for the steps `first` to `last`: all, or the extremes and ends of each bucket.

    A bucket that begins or ends outside the range is included as a whole. The buckets are the widest of which the range
    has at least `least`.
    """
    parts = read_parts(connection, run)
    shown = [segment for segment in segments_of(parts) if segment.last >= first and segment.first <= last]
    begin = max(first, min((segment.first for segment in shown), default=0))
    end = min(last, max((segment.last for segment in shown), default=0))
    level = sum((end - begin) >> bits >= least for bits in LEVELS)
    buckets = [bucket for segment in shown for bucket in _read(connection, run, segment, first, last, level)]
    if parts and last > parts[-1].last_step:
        buckets.append(within(_newest(connection, run, parts, newest_seq(parts), upto.seq)[1], first, last))
    return _curves(np.concatenate(buckets) if buckets else _nothing())


def news(connection: sqlite3.Connection, run: str, upto: State, seq: int, *, most: int) -> Curves | None:
    """Return the points after a cursor; None if there are more than `most`, or their steps are not in order."""
    parts = read_parts(connection, run)
    count = connection.execute(
        "SELECT count(*) FROM (SELECT 1 FROM points WHERE run = ? AND rank = 0 AND seq > ? AND seq <= ? LIMIT ?)",
        (run, seq, upto.seq, most + 1),
    ).fetchone()[0]
    if count > most:
        return None
    seqs, buckets = _newest(connection, run, parts, min(seq, newest_seq(parts)), upto.seq)
    return None if seqs is None else _curves(buckets[seqs > seq])


def _newest(
    connection: sqlite3.Connection, run: str, parts: Sequence[Part], after: int, upto: int
) -> tuple[Steps | None, Floats]:
    """Return (cursors, one bucket per point) between two cursors; no cursors if the steps are not in order."""
    cursor = connection.cursor()
    cursor.row_factory = None
    rows = cursor.execute(
        f"SELECT seq, {COLUMNS} FROM points WHERE run = ? AND rank = 0 AND seq > ? AND seq <= ? ORDER BY seq",  # noqa: S608
        (run, after, upto),
    ).fetchall()
    if not rows or not parts:
        return np.empty(0, dtype=np.int64), _nothing()
    points = to_points(connection, run, [row[1:] for row in rows])
    buckets = points.buckets(_losses(connection, run, parts[-1], int(points.steps[0])))[1]
    return (np.array([row[0] for row in rows]) if points.came_in_order else None), buckets


def _curves(buckets: Floats) -> Curves:
    return {name: candidates(buckets, series) for series, name in enumerate(SERIES)}


def segments_of(parts: Sequence[Part]) -> list[Segment]:
    """Return the parts of the attempts that are on the curve, by step."""
    segments: list[Segment] = []
    cut = END
    for part in reversed([part for part in parts if not part.is_empty]):
        if part.first_step <= cut:
            segments.append(Segment(part=part, first=part.first_step, last=min(part.last_step, cut)))
        cut = min(cut, part.first_step - 1)
    return segments[::-1]


def _read(
    connection: sqlite3.Connection, run: str, segment: Segment, first: int, last: int, level: int
) -> Iterator[Floats]:
    """Return the buckets of a level. Where a later attempt cuts a bucket, finer buckets give the rest of it."""
    first, last = max(first, segment.first), min(last, segment.last)
    if first > last:
        return
    if level == 0:
        yield from _points(connection, run, segment, first, last)
        return
    bits = LEVELS[level - 1]
    is_cut = segment.last < segment.part.last_step and last >> bits == segment.last >> bits
    end = (last >> bits) - is_cut
    yield read_level(connection, run, segment.part.attempt, bits, first >> bits, end)[1]
    if is_cut:
        yield from _read(connection, run, segment, max(first, (end + 1) << bits), last, level - 1)


def _points(connection: sqlite3.Connection, run: str, segment: Segment, first: int, last: int) -> Iterator[Floats]:
    """Return the points themselves, or, if their rows were dropped, the points kept by the narrowest buckets."""
    cursor = connection.cursor()
    cursor.row_factory = None
    where = (run, segment.part.attempt)
    rows = cursor.execute(
        f"SELECT {COLUMNS} FROM points WHERE run = ? AND attempt = ? AND rank = 0 AND step BETWEEN ? AND ? AND seq <= ?"  # noqa: S608
        " ORDER BY step",
        (*where, first, last, segment.part.seq),
    ).fetchall()
    if rows:
        points = to_points(connection, run, rows)
        yield points.buckets(_losses(connection, run, segment.part, int(points.steps[0])))[1]
        return
    bits = LEVELS[0]
    _, buckets = read_level(connection, run, segment.part.attempt, bits, first >> bits, last >> bits)
    yield within(buckets, segment.first, segment.last)


def _losses(connection: sqlite3.Connection, run: str, part: Part, step: int) -> Floats:
    """Return the newest finite losses before a step. For the newest steps, the loaded part has them."""
    loaded = part.losses[part.losses[:, 0] < step]
    if len(loaded) >= WINDOW:
        return loaded[:, 1]
    older = losses_before(connection, run, part.attempt, step)
    return loaded[:, 1] if len(loaded) >= len(older) else np.array([value for _, value in older])


def _nothing() -> Floats:
    return np.empty((0, len(SERIES), 4, 2))
