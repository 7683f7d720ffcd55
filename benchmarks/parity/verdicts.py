"""What a case of the parity suite shows: how far its losses and gradients are from those of its reference."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STEP_NOISE = {"fp32": 2e-5, "bf16": 5e-3}
"""Share by which losses, and gradient norms of a whole model, may differ in that precision. The noise of two
orders of bf16 sums was 0.1 % of a gradient norm after four steps: the first steps of Adam magnify it."""
PART_NOISE = {"fp32": 1e-4, "bf16": 1e-2}
"""The same for the gradient norm of one part at the first step, where all cases have equal weights."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far a case is from its reference, as shares."""

    loss: float
    """The largest difference of a step's loss."""
    gradient: float
    """The same of the gradient norm."""
    parts: Mapping[str, float]
    """Part of the model -> gradient norm at the first step, divided by the reference's."""

    def within(self, precision: str) -> bool:
        """Return whether the case is within the noise of that precision."""
        noise, part = STEP_NOISE[precision], PART_NOISE[precision]
        return (
            self.loss < noise and self.gradient < noise and all(abs(share - 1) < part for share in self.parts.values())
        )


def difference(steps: list[dict[str, Any]], reference: list[dict[str, Any]]) -> Difference:
    """Return the difference of two runs with the same steps."""
    if [step["step"] for step in steps] != [step["step"] for step in reference]:
        raise ValueError("the runs have other steps")
    first, right = steps[0]["parts"], reference[0]["parts"]
    return Difference(
        loss=max(_share(step, other, "loss") for step, other in zip(steps, reference, strict=True)),
        gradient=max(_share(step, other, "grad_norm") for step, other in zip(steps, reference, strict=True)),
        parts={part: (first[part] / right[part]) ** 0.5 for part in first if right[part] > 0},
    )


def _share(step: dict[str, Any], other: dict[str, Any], key: str) -> float:
    share = abs(step[key] / other[key] - 1)
    # NaN is no small difference.
    return float(share) if share == share else float("inf")
