"""Tells gradient norms that are not finite from those that a loss scale explains."""

import math
from collections.abc import Iterable

IN_A_ROW = 5
"""Fewest logged norms in a row that are no longer normal in fp16, after a finite one."""
AT_START = 35
"""The same before the first finite norm of an attempt.

With fp16, a step whose gradients are not finite is left out and halves the loss scale. Megatron-Core starts at 2^32,
halves it from the second such step on and ends at 1 (0.16.1 core/optimizer/optimizer_config.py: initial_loss_scale,
hysteresis, min_loss_scale), which are 33 steps. torch starts at 2^16
(https://docs.pytorch.org/docs/stable/_modules/torch/cuda/amp/grad_scaler.html).
"""


def not_finite(norms: Iterable[tuple[int, float]], since: int, *, is_fp16: bool) -> tuple[int, float, int] | None:
    """Return (first step, newest value, number) of the first row of norms that are not finite, and of which one is at
    step `since` or later; None if all such rows are normal.

    `norms`: (step, value), oldest first. Without fp16 there is no loss scale, and one such norm is a fault.
    """
    first, number, limit = 0, 0, AT_START
    for step, norm in norms:
        if math.isfinite(norm):
            number, limit = 0, IN_A_ROW
            continue
        first = first if number else step
        number += 1
        if step >= since and number >= (limit if is_fp16 else 1):
            return first, norm, number
    return None
