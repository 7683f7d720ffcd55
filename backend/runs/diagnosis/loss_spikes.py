"""Detects a rise of a logged value above its usual range: a run that diverges wastes its GPUs until a user reacts."""

from collections.abc import Mapping, Sequence
from statistics import median

from backend.runs.states import EventKind

BEFORE, LEAST_BEFORE = 50, 20
"""Number of logged values that define the usual range."""
NEWEST = 3
"""Number of newest logged values that must all have risen, because single steps jump.

The basis is 4,357 logged steps of seven published trainings (trainer_state.json of, among others,
https://github.com/HangerYang/Star and https://github.com/ki-system-sicherheit/prompt-mitigation-llm). Single gradient
norms were up to 19 times the median before them. The lowest of three in a row was never more than 2.8 times it.
"""
DEVIATIONS = 6
"""Median absolute deviations above the median."""
LEAST_SHARE: Mapping[str, float] = {"loss": 0.2, "grad_norm": 2.0}
"""Value -> least rise as a share of the median: a value that hardly varies may move by this much."""
EVENTS: Mapping[str, EventKind] = {"loss": EventKind.LOSS_ROSE, "grad_norm": EventKind.GRAD_NORM_ROSE}
AGAIN_STEPS = 500
"""Number of steps until the alert is repeated."""


def rise(values: Sequence[float], least_share: float) -> tuple[float, float] | None:
    """Return the medians (newest, usual) if the newest values have risen, else None. `values`: finite, oldest first."""
    newest, before = values[-NEWEST:], values[-NEWEST - BEFORE : -NEWEST]
    if len(before) < LEAST_BEFORE:
        return None
    usual = median(before)
    spread = median(abs(value - usual) for value in before)
    if min(newest) <= usual + max(DEVIATIONS * spread, least_share * abs(usual)):
        return None
    return median(newest), usual
