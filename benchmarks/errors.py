"""Errors of a benchmark by source: how many rows were compared, how many were left out, how far off ours are."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One published measurement beside our figure, in the unit of the source."""

    source: str
    case: str
    measured: float
    ours: float
    baseline: float
    """What the dumbest rule says: 18 bytes a parameter over the ranks that hold a copy of the model."""
    family: str | None = None
    """megatron or hugging_face, where the figure is the peak of a whole run: what the page may quote."""
    kind: str = ""
    """Of the run within its family: backend.estimate.kind_of_run."""

    @property
    def error(self) -> float:
        """Ours, relative to what was measured."""
        return self.ours / self.measured - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """A row without a figure of ours, and why; decided from the row's arguments alone."""

    source: str
    case: str
    reason: str


FEWEST = 5
"""Runs that a kind needs to have an error of its own."""
MAXIMUM_STAGES = 4096
"""More chunks of a pipeline than any run has; a row with more is a mistake."""
UNREADABLE = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, ZeroDivisionError)
"""What a row with missing, empty or odd fields may raise while it is read."""


def unreadable(error: Exception) -> str:
    """The reason for skipping a row that raised one of UNREADABLE."""
    if isinstance(error, KeyError):
        return f"not published: {error.args[0]}"
    return f"a field that cannot be read: {type(error).__name__}"


def figure(value: object) -> float | None:
    """A measured figure, None where there is none that means something."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < math.inf else None


def summary(results: Iterable[Result], skips: Iterable[Skip]) -> dict[str, dict[str, Any]]:
    """{source: {rows, skipped, mean, median, p90, max, baseline_median}}; errors are absolute fractions."""
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
    """The same figures of all peaks of an engine family, and of each kind of run in it with enough of them."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        if result.family:
            groups.setdefault(result.family, []).append(result)
            groups.setdefault(f"{result.family}-{result.kind}", []).append(result)
    large = {name: found for name, found in sorted(groups.items()) if "-" not in name or len(found) >= FEWEST}
    return {name: {"rows": len(found), **_figures(found)} for name, found in large.items()}


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
