"""Seconds of one micro-batch through something, by what takes them: a layer, a chunk, a stage."""

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

    def times(self, count: Number) -> "Passes":
        """Through so many of them."""
        return Passes(self.forward.times(count), self.backward.times(count), self.recomputed.times(count))

    def plus(self, other: "Passes") -> "Passes":
        """Through both."""
        return Passes(
            self.forward.plus(other.forward),
            self.backward.plus(other.backward),
            self.recomputed.plus(other.recomputed),
        )


NO_PASSES = Passes(NOTHING, NOTHING, NOTHING)
