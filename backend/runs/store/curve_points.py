"""Points of a run's curves as arrays, from rows of the table `points`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.runs.store.curve_buckets import Floats, Steps, of_points, smooth

COLUMNS = "step, loss, grad_norm, learning_rate, step_s, tokens, loss IS NOT NULL"
"""Columns of the table, as `Points.of` reads them."""
LARGEST_STEP = (1 << 53) - 1
"""A larger number, or a negative one, is no valid step. The nearest valid step replaces it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """Points by step."""

    steps: Steps
    losses: Floats
    """NaN and infinity as logged; NaN without a value."""
    has_loss: NDArray[np.bool_]
    values: Floats
    """A column each for loss, grad_norm, learning_rate, tokens_per_s and step_s; NaN where it is not finite."""
    came_in_order: bool
    """Whether the steps of the rows ascended."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[Any]], assumed_tokens: int | None) -> "Points":
        """Return the points of rows of COLUMNS, at least one. `assumed_tokens`: for a step whose row has no tokens."""
        table = np.array(rows, dtype=np.float64)
        steps = np.clip(table[:, 0], 0, LARGEST_STEP).astype(np.int64)
        came_in_order = bool((np.diff(steps) > 0).all())
        if not came_in_order:
            order = np.argsort(steps, kind="stable")
            steps, table = steps[order], table[order]
        _, loss, grad_norm, learning_rate, step_s, tokens, has_loss = table.T
        tokens = np.where(np.isnan(tokens), np.nan if assumed_tokens is None else assumed_tokens, tokens)
        rate = np.divide(tokens, step_s, out=np.full(len(steps), np.nan), where=step_s != 0)
        values = np.stack((loss, grad_norm, learning_rate, rate, step_s), axis=1)
        values[~np.isfinite(values)] = np.nan
        return cls(steps=steps, losses=loss, has_loss=has_loss == 1, values=values, came_in_order=came_in_order)

    def finite_losses(self) -> Floats:
        """Return (step, value) of the finite losses."""
        is_finite = ~np.isnan(self.values[:, 0])
        return np.stack((self.steps[is_finite].astype(np.float64), self.losses[is_finite]), axis=1)

    def buckets(self, before: Floats) -> tuple[Steps, Floats]:
        """Return one bucket per point, with its step as number. `before`: newest finite losses before, oldest first."""
        smoothed, bad = smooth(self.losses, self.has_loss, before)
        return self.steps, of_points(self.steps, np.column_stack((self.values, smoothed, bad)))
