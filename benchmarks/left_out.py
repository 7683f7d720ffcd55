"""Intervals between quantiles of scores of whole sources, and the share of rows that they hold without their source."""

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import combinations, islice
from typing import NamedTuple

COVERED = 0.82
"""The share of left-out rows to hold: a little more than 80 %, because sources that nobody has seen may be worse."""
TAILS = [tail / 200 for tail in range(20, 4, -1)]
"""Shares outside on each side that are tried, the narrowest interval first. None is narrower than the 80 % of its own
scores."""
OTHER_KIND = 0.3
MANY, OF_STRANGERS = 10, 0.8
FULL = 5
"""Rows from which on a source counts fully."""
MOST_WAYS = 500
"""Ways to correct a row by others that are tried."""


class Score(NamedTuple):
    """The logarithm of measured over estimated of one row."""

    source: str
    kind: str
    log: float
    group: str
    """Equal for rows of one model on one cluster."""


class Interval(NamedTuple):
    """Factors of an estimate."""

    low: float
    high: float


def level_of(scores: Iterable[Score]) -> float:
    """Return the median over sources of the median ratio."""
    by_source: dict[str, list[float]] = {}
    for score in scores:
        by_source.setdefault(score.source, []).append(score.log)
    return math.exp(statistics.median(statistics.median(logs) for logs in by_source.values()))


def levelled(scores: Iterable[Score], level: float) -> list[Score]:
    """Return the scores of estimates that are multiplied by the level."""
    return [score._replace(log=score.log - math.log(level)) for score in scores]


class Held(NamedTuple):
    """A row and the interval that was made without its source."""

    source: str
    stranger: bool
    inside: bool
    low: float
    high: float


def left_out(
    strangers: Sequence[Score], others: Sequence[Score], kind: str, tail: float, *, by_level: bool = False
) -> list[Held]:
    """Return every row of a kind with the interval of the other sources; `by_level` with their level of times, too."""
    held = []
    for source in sorted({score.source for score in (*strangers, *others) if score.kind == kind}):
        own = [score for score in strangers if score.source == source]
        rest = [score for score in strangers if score.source != source]
        if by_level:
            level = level_of(rest)
            own, rest = levelled(own, level), levelled(rest, level)
        rest += [score for score in others if score.source != source]
        low, high = interval(rest, kind, tail)
        rows = [(score, True) for score in own] + [(score, False) for score in others if score.source == source]
        held += [
            Held(source, stranger, low <= math.exp(score.log) <= high, low, high)
            for score, stranger in rows
            if score.kind == kind
        ]
    return held


def share_by_source(held: Sequence[Held]) -> float:
    """Return the share of rows inside; each source counts the same, as in `interval`."""
    rows: dict[str, list[bool]] = {}
    for row in held:
        rows.setdefault(row.source, []).append(row.inside)
    weights = {source: min(FULL, len(inside)) for source, inside in rows.items()}
    inside = sum(weights[source] * statistics.fmean(of_source) for source, of_source in rows.items())
    return inside / max(1, sum(weights.values()))


def tail_of(strangers: Sequence[Score], others: Sequence[Score], kind: str, *, by_level: bool = False) -> float:
    """Return the share outside on each side at which COVERED of the left-out rows are inside."""
    for tail in TAILS:
        held = left_out(strangers, others, kind, tail, by_level=by_level)
        of_strangers = [row.inside for row in held if row.stranger]
        enough = len(of_strangers) < MANY or statistics.fmean(of_strangers) >= OF_STRANGERS
        if enough and share_by_source(held) >= COVERED:
            return tail
    return TAILS[-1]


def interval(scores: Sequence[Score], kind: str, tail: float) -> Interval:
    """Return the factors between the quantiles of the scores; each source counts the same."""
    sizes: dict[tuple[str, str], int] = {}
    for score in scores:
        sizes[score.source, score.kind] = sizes.get((score.source, score.kind), 0) + 1
    weighted = sorted(
        (score.log, (1 if score.kind == kind else OTHER_KIND) / max(FULL, sizes[score.source, score.kind]))
        for score in scores
    )
    return Interval(math.exp(_quantile(weighted, tail)), math.exp(_quantile(weighted, 1 - tail)))


def _quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    total, passed = sum(weight for _, weight in weighted), 0.0
    for value, weight in weighted:
        passed += weight
        if passed >= share * total:
            return value
    return weighted[-1][0]


class Corrected(NamedTuple):
    """The error of a row that is left after other rows of its group corrected the estimate."""

    source: str
    log: float
    weight: float
    """Share of the row: it is corrected in several ways."""


def corrected(scores: Iterable[Score], runs: int = 1) -> list[Corrected]:
    """Return the errors of rows after the mean ratio of `runs` other rows of the same model and cluster."""
    by_group: dict[tuple[str, bool, str], list[float]] = {}
    for score in scores:
        by_group.setdefault((score.source, score.kind == "megatron", score.group), []).append(score.log)
    errors = []
    for (source, _, _), logs in by_group.items():
        for place, log in enumerate(logs):
            ways = list(islice(combinations(logs[:place] + logs[place + 1 :], runs), MOST_WAYS))
            errors += [Corrected(source, log - statistics.fmean(way), 1 / len(ways)) for way in ways]
    return errors


def calibrated(errors: Sequence[Corrected]) -> Interval:
    """Return the 80 % interval after a correction; each source counts the same, as in `interval`."""
    rows: dict[str, float] = {}
    for error in errors:
        rows[error.source] = rows.get(error.source, 0.0) + error.weight
    weighted = sorted((error.log, error.weight / max(FULL, rows[error.source])) for error in errors)
    return Interval(math.exp(_quantile(weighted, 0.1)), math.exp(_quantile(weighted, 0.9)))
