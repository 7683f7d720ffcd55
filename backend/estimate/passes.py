"""Seconds of one micro-batch through something, by what takes them: a layer, a chunk, a stage."""

from collections.abc import Sequence
from typing import NamedTuple

from backend.estimate.numeric import Number


class Pass(NamedTuple):
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


NOTHING = Pass(0.0, 0.0, 0.0, 0.0)


class Passes(NamedTuple):
    """One micro-batch there and back."""

    forward: Pass
    backward: Pass
    recomputed: Pass


NO_PASSES = Passes(NOTHING, NOTHING, NOTHING)


def combined(parts: Sequence[tuple[Number, Passes]]) -> Passes:
    """Through so many of each, one after the other; the sum of `times`, in one go."""
    ways = []
    for way in range(3):
        compute: Number = 0.0
        tensor: Number = 0.0
        context: Number = 0.0
        expert: Number = 0.0
        for count, passes in parts:
            one = passes[way]
            compute = compute + count * one[0]
            tensor = tensor + count * one[1]
            context = context + count * one[2]
            expert = expert + count * one[3]
        ways.append(Pass(compute, tensor, context, expert))
    return Passes(*ways)
