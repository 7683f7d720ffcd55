"""The part of a micro-batch on one rank."""

from backend.estimate.array_ops import ZERO, Number
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.time.communication import Group, is_single_rank, ring_seconds_per_byte
from backend.estimate.time.time_context import TimeContext


@frozen_dataclass
class Load:
    """The part of a micro-batch on one rank, and the sizes of the groups that share it."""

    tokens: Number
    length: Number
    """Tokens of the context for attention: those of a whole sequence, or of a sample in it."""
    tensor: Number = 1
    whole: Number = 1.0
    """Share of a rank in tokens that sequence parallelism splits."""
    context: Number = 1
    expert: Number = 1
    expert_tensor: Number = 1
    gather: Number = 0.0
    """Exposed seconds per byte that is gathered over TP."""


def load_of(time_context: TimeContext) -> Load:
    """Return the part of the language model's micro-batch on one rank."""
    plan, seconds_per_byte = time_context.plan, ZERO
    if not is_single_rank(plan.tensor):
        group = Group(plan.tensor, 1)
        seconds_per_byte = ring_seconds_per_byte(group, time_context.machine, time_context.efficiency)
    return Load(
        tokens=plan.tokens,
        length=plan.attention_length,
        tensor=plan.tensor,
        whole=plan.whole_share,
        context=plan.context,
        expert=plan.expert,
        expert_tensor=plan.expert_tensor,
        gather=time_context.overlapped * seconds_per_byte,
    )
