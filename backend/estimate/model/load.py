"""What one rank gets of a micro-batch."""

from backend.estimate.array_ops import Number
from backend.estimate.frozen_dataclass import record
from backend.estimate.time.communication import Group, alone, ring_pace
from backend.estimate.time.time_context import Setting


@record
class Load:
    """What one rank gets of a micro-batch, and with whom it shares it."""

    tokens: Number
    length: Number
    """Tokens of the context that attention sees: a whole sequence, or a sample in it."""
    tensor: Number = 1
    whole: Number = 1
    """Share of the tokens in what sequence parallelism splits."""
    context: Number = 1
    expert: Number = 1
    expert_tensor: Number = 1
    gather: Number = 0.0
    """Seconds a byte that is gathered over TP, of what nothing hides."""


def load_of(setting: Setting) -> Load:
    """A rank's part of the language model's micro-batch."""
    plan, group = setting.plan, Group(setting.plan.tensor, 1)
    pace = 0.0 if alone(plan.tensor) else ring_pace(group, setting.machine, setting.efficiency)
    return Load(
        tokens=plan.tokens,
        length=plan.sequence_length if plan.attended is None else plan.attended,
        tensor=plan.tensor,
        whole=plan.whole_share,
        context=plan.context,
        expert=plan.expert,
        expert_tensor=plan.expert_tensor,
        gather=setting.overlapped * pace,
    )
