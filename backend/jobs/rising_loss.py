"""Whether the loss has risen out of what it was: a run that diverges costs its GPUs until somebody looks."""

from collections.abc import Sequence
from statistics import median

BEFORE, LEAST_BEFORE = 50, 20
"""Logged losses that say what is usual."""
NEWEST = 3
"""Logged losses that must all have risen: single steps jump."""
DEVIATIONS = 6
"""Median absolute deviations above the median."""
LEAST_SHARE = 0.2
"""Of the median: a loss that hardly varies may move as much."""
AGAIN_STEPS = 500
"""It is told again after so many steps."""


def rise(losses: Sequence[float]) -> tuple[float, float] | None:
    """(what the newest losses are, what was usual), medians, where they have risen; `losses`: finite, oldest first."""
    newest, before = losses[-NEWEST:], losses[-NEWEST - BEFORE : -NEWEST]
    if len(before) < LEAST_BEFORE:
        return None
    usual = median(before)
    spread = median(abs(one - usual) for one in before)
    if min(newest) <= usual + max(DEVIATIONS * spread, LEAST_SHARE * abs(usual)):
        return None
    return median(newest), usual
