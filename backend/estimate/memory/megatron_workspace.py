"""Bytes that a layer on Megatron-Core needs during its forward or backward pass, beside those that it saves."""

from backend.estimate.array_ops import Number, choose, larger, largest
from backend.estimate.memory.megatron_adapters import Adapters
from backend.estimate.memory.stage import Stage
from backend.estimate.model.layers import LayerKind, ModelLayers, operators_of
from backend.estimate.plan import Plan
from backend.job.model.operators import Activation, Dispatch, Linear

_UP = {"mlp": "up", "moe": "expert_up", "shared_experts": "shared_up"}
"""The projection before each FFN's non-linearity."""


def ffn_gradients(kind: LayerKind, plan: Plan, adapters: Adapters | None) -> Number:
    """Return the bytes of the gradient of the FFN's first projection, while its saved output still exists.

    An adapter scales its output (mcore_bridge 1.6.5 tuners/lora.py), so its part of the gradient is a copy.
    """
    adapted = _adapted(kind, adapters)
    most: Number = 0.0
    for operator in operators_of(kind, Activation):
        width = 2 * operator.width * (2 if operator.gated else 1) * (2 if _UP[operator.module] in adapted else 1)
        share = plan.whole_share if operator.module == "moe" else 1 / plan.tensor
        most = larger(most, width * share)
    return plan.tokens * most


def expert_copies(kind: LayerKind, plan: Plan, adapters: Adapters | None) -> Number:
    """Return the bytes of tokens on the way to experts and back that variables in the code hold; 0 without experts.

    megatron-core 0.16.1 transformer/moe/moe_layer.py custom_forward and routed_experts_compute hold four copies: sorted
    for the exchange, exchanged, as outputs of the experts, and unsorted. ETP ranks each hold all of the last two. The
    input of the experts is a saved activation, which is counted there. Without EP nothing is exchanged. With an
    adapter, whose output is scaled and added, there is one more copy.
    """
    dispatches = operators_of(kind, Dispatch)
    if not dispatches:
        return 0.0
    routed: int = sum([2 * dispatch.top_k * dispatch.hidden for dispatch in dispatches])
    outputs = 3 if "expert_down" in _adapted(kind, adapters) else 2
    return plan.tokens * plan.whole_share * routed * (choose(plan.expert > 1, 2, 1) + outputs * plan.expert_tensor)


def _adapted(kind: LayerKind, adapters: Adapters | None) -> set[str]:
    return {linear.name for linear in adapters.linears(kind)} if adapters else set()


def largest_weight(kind: LayerKind, plan: Plan) -> Number:
    """Return the elements of the largest weight whose gradient exists before it is accumulated; grouped experts count
    together."""
    sizes = [
        operator.inputs * operator.outputs * operator.copies / _cut(operator, plan)
        for operator in operators_of(kind, Linear)
    ]
    return largest(*sizes)


def _cut(operator: Linear, plan: Plan) -> Number:
    if operator.share == "expert":
        return plan.expert * plan.expert_tensor
    return plan.tensor if operator.share == "split" else 1


def cached_gradients(layers: ModelLayers, plan: Plan, stage: Stage) -> Number:
    """Return the bytes of dummy gradients: Transformer Engine >= 2.3 keeps one for every distinct weight shape; experts
    share theirs."""
    shapes: dict[tuple[int, int, str], Number] = {}
    kinds = [kind for kind, _ in stage.kinds]
    for kind in [*kinds, layers.output] if stage.last else kinds:
        for operator in operators_of(kind, Linear):
            if operator.name != "router":
                cut = plan.expert_tensor if operator.share == "expert" else _cut(operator, plan)
                shape = (operator.inputs, operator.outputs, operator.share)
                shapes[shape] = 2 * operator.inputs * operator.outputs / cut
    return sum(shapes.values())
