"""Seconds of one micro-batch through a layer, a chunk or a stage, by computation and communication."""

from backend.estimate.array_ops import Number
from backend.estimate.frozen_dataclass import positional_dataclass


@positional_dataclass
class Pass:
    """Seconds of one micro-batch in one direction."""

    compute: Number
    tensor: Number
    """Exposed communication; likewise the next two fields."""
    context: Number
    expert: Number

    def total(self) -> Number:
        """Return the sum of all parts."""
        return self.compute + self.tensor + self.context + self.expert

    def times(self, count: Number) -> "Pass":
        """Return the pass through `count` such parts in sequence."""
        return Pass(count * self.compute, count * self.tensor, count * self.context, count * self.expert)

    def computing(self, seconds: Number) -> "Pass":
        """Return the pass with more seconds of computation."""
        return Pass(self.compute + seconds, self.tensor, self.context, self.expert)

    def plus(self, other: "Pass") -> "Pass":
        """Return the pass through both parts in sequence."""
        return Pass(
            self.compute + other.compute,
            self.tensor + other.tensor,
            self.context + other.context,
            self.expert + other.expert,
        )


@positional_dataclass
class Extra:
    """Work of a pass beside that of the layer's own operators."""

    seconds: Number
    """Seconds on the GPU."""
    host: Number
    """Host time, in kernel starts (Efficiency.host_s)."""

    def plus(self, other: "Extra") -> "Extra":
        """Return the sum of both."""
        return Extra(self.seconds + other.seconds, self.host + other.host)


NO_EXTRA = Extra(0.0, 0.0)
NO_PASS = Pass(0.0, 0.0, 0.0, 0.0)


@positional_dataclass
class Passes:
    """Seconds of one micro-batch in both directions."""

    forward: Pass
    backward: Pass
    recomputed: Pass

    def plus(self, other: "Passes") -> "Passes":
        """Return the passes through both layers in sequence."""
        return Passes(
            self.forward.plus(other.forward),
            self.backward.plus(other.backward),
            self.recomputed.plus(other.recomputed),
        )


NO_PASSES = Passes(NO_PASS, NO_PASS, NO_PASS)
