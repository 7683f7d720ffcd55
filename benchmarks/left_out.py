"""Intervals between quantiles of scores of whole sources, and the share of rows that they hold without their source."""

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import combinations, islice
from typing import NamedTuple

from backend.estimate.interval import after_runs
from backend.job.presets import Interval

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
    """Equal for rows of one training on one cluster, which differ in the plan."""
    weight: float = 1.0
    """Share of the row: a row that is corrected in several ways has a score for each."""
    unknown_lengths: bool = False
    """Whether its source does not tell how long the samples are."""
    relief: float = 1.0
    """Relief of the machine (backend.estimate.time.efficiency) in a row of time."""
    spread: float | None = None
    """Standard deviation of the logarithms of the rows that corrected it; None for one row."""


def level_of(scores: Iterable[Score]) -> float:
    """Return the median over sources of the median ratio, on GPUs without a power limit."""
    by_source: dict[str, list[float]] = {}
    for score in scores:
        by_source.setdefault(score.source, []).append(score.log - math.log(score.relief))
    return math.exp(statistics.median(statistics.median(logs) for logs in by_source.values()))


def levelled(scores: Iterable[Score], level: float) -> list[Score]:
    """Return the scores of estimates that are multiplied by the level (backend.estimate.time.efficiency level_on)."""
    return [score._replace(log=score.log - math.log(max(1.0, level * score.relief))) for score in scores]


class Held(NamedTuple):
    """A row and the interval that was made without its source."""

    source: str
    stranger: bool
    inside: bool
    low: float
    high: float
    weight: float = 1.0


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
        factors = interval(rest, kind, tail)
        rows = [(score, True) for score in own] + [(score, False) for score in others if score.source == source]
        held += [held_by(score, factors, stranger=stranger) for score, stranger in rows if score.kind == kind]
    return held


def share_by_source(held: Sequence[Held]) -> float:
    """Return the share of rows inside; each source counts the same, as in `interval`."""
    rows: dict[str, list[Held]] = {}
    for row in held:
        rows.setdefault(row.source, []).append(row)
    weights = {source: min(FULL, weight_of(of_source)) for source, of_source in rows.items()}
    inside = sum(weights[source] * share_of_rows(of_source) for source, of_source in rows.items())
    return inside / (sum(weights.values()) or 1)


def share_of_rows(held: Sequence[Held]) -> float:
    """Return the share of rows inside."""
    return sum(row.weight * row.inside for row in held) / (weight_of(held) or 1)


def weight_of(held: Iterable[Held]) -> float:
    """Return the number of rows, each of which may be held several times."""
    return sum(row.weight for row in held)


def tail_of(strangers: Sequence[Score], others: Sequence[Score], kind: str, *, by_level: bool = False) -> float:
    """Return the share outside on each side at which COVERED of the left-out rows are inside; if none holds so many,
    the narrowest that holds most."""
    shares = {}
    for tail in TAILS:
        held = left_out(strangers, others, kind, tail, by_level=by_level)
        of_strangers = [row.inside for row in held if row.stranger]
        enough = len(of_strangers) < MANY or statistics.fmean(of_strangers) >= OF_STRANGERS
        shares[tail] = share_by_source(held)
        if enough and shares[tail] >= COVERED:
            return tail
    return max(TAILS, key=lambda tail: (shares[tail], tail))


def interval(scores: Sequence[Score], kind: str, tail: float) -> Interval:
    """Return the factors between the quantiles of the scores; each source counts the same."""
    sizes: dict[tuple[str, str], float] = {}
    for score in scores:
        sizes[score.source, score.kind] = sizes.get((score.source, score.kind), 0) + score.weight
    weighted = sorted(
        (
            score.log,
            score.weight * (1 if score.kind == kind else OTHER_KIND) / max(FULL, sizes[score.source, score.kind]),
        )
        for score in scores
    )
    return Interval(low=math.exp(_quantile(weighted, tail)), high=math.exp(_quantile(weighted, 1 - tail)))


def _quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    total, passed = sum(weight for _, weight in weighted), 0.0
    for value, weight in weighted:
        passed += weight
        if passed >= share * total:
            return value
    return weighted[-1][0]


def corrected(scores: Iterable[Score], runs: int = 1) -> list[Score]:
    """Return the scores of rows after the mean ratio of `runs` other rows of their group corrected the estimate."""
    by_group: dict[tuple[str, str, str], list[float]] = {}
    for score in scores:
        by_group.setdefault((score.source, score.kind, score.group), []).append(score.log)
    errors = []
    for (source, kind, group), logs in by_group.items():
        for place, log in enumerate(logs):
            ways = list(islice(combinations(logs[:place] + logs[place + 1 :], runs), MOST_WAYS))
            for way in ways:
                spread = statistics.stdev(way) if runs > 1 else None
                errors.append(
                    Score(source, kind, log - statistics.fmean(way), group, weight=1 / len(ways), spread=spread)
                )
    return errors


def left_out_corrected(scores: Sequence[Score], kind: str, tail: float, runs: int = 1) -> list[Held]:
    """Return every corrected row of a kind with the interval that was made from single runs of the other sources."""
    single, errors = corrected(scores), [score for score in corrected(scores, runs) if score.kind == kind]
    held = []
    for source in sorted({score.source for score in errors}):
        factors = interval([score for score in single if score.source != source], kind, tail)
        for score in errors:
            if score.source == source:
                ends = after_runs(factors, runs, score.spread)
                held.append(held_by(score, ends, stranger=False))
    return held


def held_by(score: Score, factors: Interval, *, stranger: bool) -> Held:
    """Return whether a score is inside an interval that was made without its source."""
    inside = factors.low <= math.exp(score.log) <= factors.high
    return Held(score.source, stranger, inside, factors.low, factors.high, score.weight)


def tail_of_corrected(scores: Sequence[Score], kind: str) -> float:
    """Return the share outside on each side at which OF_STRANGERS of the left-out corrected rows are inside.

    That share is of the rows, and with each source counting the same. If none holds so many, it is of the narrowest
    interval that holds most.
    """
    shares = {}
    for tail in TAILS:
        held = left_out_corrected(scores, kind, tail)
        shares[tail] = min(share_by_source(held), share_of_rows(held))
        if shares[tail] >= OF_STRANGERS:
            return tail
    return max(TAILS, key=lambda tail: (shares[tail], tail))
