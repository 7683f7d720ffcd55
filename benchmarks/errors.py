"""Errors of a benchmark by source: rows compared, rows skipped, and statistics of the errors."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One published measurement and our estimate, in the unit of the source."""

    source: str
    case: str
    measured: float
    ours: float
    baseline: float
    """Estimate of the simplest rule: 18 bytes per parameter, divided by the ranks that hold a copy of the model."""
    family: str | None = None
    """megatron or hugging_face if the figure is the peak of a whole run. The page may quote these."""
    kind: str = ""
    """Kind of run within its family: backend.estimate.kind_of_run."""
    unknown_lengths: bool = False
    """Whether the source does not tell how long its samples are, so that the estimate is for full ones."""

    @property
    def error(self) -> float:
        """Return the error of our estimate, relative to the measurement."""
        return self.ours / self.measured - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """A row without an estimate, and the reason. Only the row's arguments decide."""

    source: str
    case: str
    reason: str


FEWEST = 5
"""Minimum number of runs for a kind to have its own error."""
MAXIMUM_STAGES = 4096
"""Limit on the chunks of a pipeline. A row above it is a mistake."""
UNREADABLE = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, ZeroDivisionError)
"""Exceptions of reading a row with missing, empty or odd fields."""


def unreadable(error: Exception) -> str:
    """Return the reason to skip a row that raised one of UNREADABLE."""
    if isinstance(error, KeyError):
        return f"not published: {error.args[0]}"
    return f"a field that cannot be read: {type(error).__name__}"


def figure(value: object) -> float | None:
    """Return a measured figure; None if it is not a positive finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < math.inf else None


def coverage(scores: Iterable[tuple[float, tuple[float, float]]]) -> dict[str, float | int | None]:
    """Return covered_80, the number of rows inside their 80 % interval, and width_80, its mean width as a fraction.

    A score is (measured over estimated, the factors of the interval).
    """
    pairs = list(scores)
    widths = [high - low for _, (low, high) in pairs]
    inside = sum(low <= ratio <= high for ratio, (low, high) in pairs)
    return {"covered_80": inside, "width_80": statistics.fmean(widths) if widths else None}


def summary(results: Iterable[Result], skips: Iterable[Skip]) -> dict[str, dict[str, Any]]:
    """Return {source: {rows, skipped, mean, median, p90, max, baseline_median}}; errors are absolute fractions."""
    by_source: dict[str, list[Result]] = {}
    for result in results:
        by_source.setdefault(result.source, []).append(result)
    reasons: dict[str, Counter[str]] = {}
    for skip in skips:
        reasons.setdefault(skip.source, Counter())[skip.reason] += 1
    return {
        source: {
            "rows": len(by_source.get(source, ())),
            "skipped": dict(reasons.get(source, {})),
            **_figures(by_source.get(source, ())),
        }
        for source in sorted({*by_source, *reasons})
    }


def by_group(results: Iterable[Result]) -> dict[str, dict[str, float | int | None]]:
    """Return the same figures for the peaks of each engine family, and of each of its kinds with enough runs."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        if result.family:
            groups.setdefault(result.family, []).append(result)
            groups.setdefault(f"{result.family}-{result.kind}", []).append(result)
    large = {name: rows for name, rows in sorted(groups.items()) if "-" not in name or len(rows) >= FEWEST}
    return {name: {"rows": len(rows), **_figures(rows)} for name, rows in large.items()}


def _figures(results: Sequence[Result]) -> dict[str, float | None]:
    if not results:
        return dict.fromkeys(("mean", "median", "p90", "max", "baseline_median"))
    errors = sorted(abs(result.error) for result in results)
    return {
        "mean": statistics.fmean(errors),
        "median": statistics.median(errors),
        "p90": errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        "max": errors[-1],
        "baseline_median": statistics.median(abs(result.baseline / result.measured - 1) for result in results),
    }
