"""Time and tokens at the steps of a run, so that a chart can have another x axis than steps."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from backend.runs.store.curve_levels import assumed_tokens_of, read_parts
from backend.runs.store.curve_view import segments_of

MOST_POINTS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """Known points of the axes, by step. Values between them are interpolated."""

    steps: list[int]
    times: list[float]
    """Seconds since the first step, with pauses between attempts. By the node's clock."""
    tokens: list[float] | None
    """Tokens since the first step, over all ranks; None where neither the engine nor the job tells them."""


def axis(connection: sqlite3.Connection, run: str) -> Axis:
    """Return time and tokens at some hundred steps of a run; the first and the last step are among them."""
    steps: list[int] = []
    times: list[float] = []
    tokens: list[float] = []
    begin, total, assumed = 0.0, 0.0, assumed_tokens_of(connection, run)
    for step, time, counted, missing in _rows(connection, run):
        begin = begin or time
        total += counted + missing * (assumed or 0)
        steps.append(step)
        times.append(round(max(0.0, time - begin, times[-1] if times else 0.0), 3))
        tokens.append(total)
        if missing and assumed is None:
            total = float("nan")
    has_tokens = bool(tokens) and total == total and total > 0
    return Axis(steps=steps, times=times, tokens=tokens if has_tokens else None)


def _rows(connection: sqlite3.Connection, run: str) -> Iterator[tuple[int, float, float, int]]:
    """Return (last step, its time, tokens, steps without tokens) of each bucket of steps on the curve."""
    segments = segments_of(read_parts(connection, run))
    for index, segment in enumerate(segments):
        # The newest points are not in the levels yet.
        last = segment.last if index < len(segments) - 1 else 1 << 53
        bits = max(0, ((segment.last - segment.first) // MOST_POINTS).bit_length())
        where = (run, segment.part.attempt)
        ranges = ((segment.first, segment.first), (segment.first + 1, last))
        for first, end in ranges:
            rows = connection.execute(
                "SELECT max(step), max(time), coalesce(sum(tokens), 0), count(*) - count(tokens) FROM points"
                " WHERE run = ? AND attempt = ? AND rank = 0 AND step BETWEEN ? AND ? GROUP BY step >> ? ORDER BY 1",
                (*where, first, end, bits),
            )
            yield from (tuple(row) for row in rows)
