"""Intervals of memory by what is known of the lengths of samples (backend.estimate.interval.LENGTHS).

- measured: of all rows of the kind.
- fixed: of the rows whose lengths are known, if that is narrower. A row whose lengths were guessed says nothing about a
  run whose samples are packed.
- unknown: it holds the interval of all rows, and that in which rows of the kind whose lengths were guessed count fully
  and all others as those of other kinds.
"""

from collections.abc import Mapping, Sequence

from backend.estimate.interval import LENGTHS
from backend.job.presets import Interval
from benchmarks.left_out import Held, Score, held_by, interval, tail_of

Tails = Mapping[str, float]
"""Shares outside on each side, by what is known of the lengths."""


def tails_of(strangers: Sequence[Score], others: Sequence[Score], kind: str) -> Tails:
    """Return the shares outside with which each interval of a kind holds enough of the left-out rows."""
    return {
        lengths: tail_of(_rows(strangers, kind, lengths), _rows(others, kind, lengths), kind) for lengths in LENGTHS
    }


def by_lengths(scores: Sequence[Score], kind: str, tails: Tails) -> dict[str, Interval]:
    """Return the intervals of a kind by what is known of the lengths."""
    every, known, guessed = (
        interval(_rows(scores, kind, lengths), kind, tails[lengths]) for lengths in ("measured", "fixed", "unknown")
    )
    fixed = known if known.high / known.low < every.high / every.low else every
    unknown = Interval(low=min(every.low, guessed.low), high=max(every.high, guessed.high))
    return {"fixed": fixed, "measured": every, "unknown": unknown}


def left_out_by_lengths(
    strangers: Sequence[Score], others: Sequence[Score], kind: str, tails: Tails
) -> dict[str, list[Held]]:
    """Return the rows of a kind with known and with unknown lengths, each with the interval of the other sources."""
    scores = [*((score, True) for score in strangers), *((score, False) for score in others)]
    held: dict[str, list[Held]] = {"fixed": [], "unknown": []}
    for source in sorted({score.source for score, _ in scores if score.kind == kind}):
        known = by_lengths([score for score, _ in scores if score.source != source], kind, tails)
        for score, stranger in scores:
            if score.source == source and score.kind == kind:
                lengths = "unknown" if score.unknown_lengths else "fixed"
                held[lengths].append(held_by(score, known[lengths], stranger=stranger))
    return held


def _rows(scores: Sequence[Score], kind: str, lengths: str) -> list[Score]:
    if lengths == "measured":
        return list(scores)
    if lengths == "fixed":
        return [score for score in scores if not score.unknown_lengths]
    return [
        score if score.unknown_lengths or score.kind != kind else score._replace(kind=f"{kind}, known lengths")
        for score in scores
    ]
