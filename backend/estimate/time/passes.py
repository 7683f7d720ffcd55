"""Seconds of one micro-batch through something, by what takes them: a layer, a chunk, a stage."""

from backend.estimate.array_ops import Number
from backend.estimate.frozen_dataclass import positional_dataclass


@positional_dataclass
class Pass:
    """Seconds of one micro-batch through something, in one direction."""

    compute: Number
    tensor: Number
    """Exposed communication, as the next two."""
    context: Number
    expert: Number

    @property
    def total(self) -> Number:
        """All of it."""
        return self.compute + self.tensor + self.context + self.expert

    def times(self, count: Number) -> "Pass":
        """Through so many of them, one after the other."""
        return Pass(count * self.compute, count * self.tensor, count * self.context, count * self.expert)

    def computing(self, seconds: Number) -> "Pass":
        """With so much more to compute."""
        return Pass(self.compute + seconds, self.tensor, self.context, self.expert)

    def plus(self, other: "Pass") -> "Pass":
        """Through both, one after the other."""
        return Pass(
            self.compute + other.compute,
            self.tensor + other.tensor,
            self.context + other.context,
            self.expert + other.expert,
        )


NO_PASS = Pass(0.0, 0.0, 0.0, 0.0)


@positional_dataclass
class Passes:
    """One micro-batch there and back."""

    forward: Pass
    backward: Pass
    recomputed: Pass


NO_PASSES = Passes(NO_PASS, NO_PASS, NO_PASS)
