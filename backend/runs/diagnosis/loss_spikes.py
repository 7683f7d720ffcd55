"""Whether what a run logs has risen out of what it was: a run that diverges costs its GPUs until somebody looks."""

from collections.abc import Mapping, Sequence
from statistics import median

from backend.runs.states import EventKind

BEFORE, LEAST_BEFORE = 50, 20
"""Logged values that say what is usual."""
NEWEST = 3
"""Logged values that must all have risen: single steps jump.

In the 4,357 logged steps of seven published trainings (trainer_state.json of, among others,
https://github.com/HangerYang/Star and https://github.com/ki-system-sicherheit/prompt-mitigation-llm) single gradient
norms were up to 19 times the median before them; of three in a row the least was never more than 2.8 times it.
"""
DEVIATIONS = 6
"""Median absolute deviations above the median."""
LEAST_SHARE: Mapping[str, float] = {"loss": 0.2, "grad_norm": 2.0}
"""What is looked at -> of the median: what hardly varies may move as much."""
EVENTS: Mapping[str, EventKind] = {"loss": EventKind.LOSS_ROSE, "grad_norm": EventKind.GRAD_NORM_ROSE}
AGAIN_STEPS = 500
"""It is told again after so many steps."""


def rise(values: Sequence[float], least_share: float) -> tuple[float, float] | None:
    """(what the newest are, what was usual), medians, where they have risen; `values`: finite, oldest first."""
    newest, before = values[-NEWEST:], values[-NEWEST - BEFORE : -NEWEST]
    if len(before) < LEAST_BEFORE:
        return None
    usual = median(before)
    spread = median(abs(one - usual) for one in before)
    if min(newest) <= usual + max(DEVIATIONS * spread, least_share * abs(usual)):
        return None
    return median(newest), usual
