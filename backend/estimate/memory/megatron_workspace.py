"""Bytes that a layer on Megatron-Core needs during its forward or backward pass, beside those that it saves."""

from functools import lru_cache

from backend.estimate.array_ops import ZERO, Number, choose, larger
from backend.estimate.memory.megatron_adapters import Adapters
from backend.estimate.memory.stage import Stage
from backend.estimate.model.chosen_keys import ABSORBED
from backend.estimate.model.layers import LayerKind, ModelLayers, operators_of
from backend.estimate.plan import Plan
from backend.job.model.operators import Activation, Dispatch, Linear, Share

_UP = {"mlp": "up", "moe": "expert_up", "shared_experts": "shared_up"}
"""The projection before each FFN's non-linearity."""


def ffn_gradients(kind: LayerKind, plan: Plan, adapters: Adapters | None) -> Number:
    """Return the bytes of the gradient of the FFN's first projection, while its saved output still exists.

    An adapter scales its output (mcore_bridge 1.6.5 tuners/lora.py), so its part of the gradient is a copy.
    """
    most: Number = 0.0
    for width, is_routed in _ffn_widths(kind, adapters):
        most = larger(most, width * (plan.whole_share if is_routed else 1 / plan.tensor))
    return plan.tokens * most


@lru_cache(maxsize=1024)
def _ffn_widths(kind: LayerKind, adapters: Adapters | None) -> tuple[tuple[int, bool], ...]:
    """Return the bytes per token of the gradients of each FFN, and whether its tokens are at experts."""
    adapted = _adapted(kind, adapters)
    return tuple(
        (2 * op.width * (2 if op.gated else 1) * (2 if _UP[op.module] in adapted else 1), op.module == "moe")
        for op in operators_of(kind, Activation)
    )


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
    most = ZERO
    for share, elements in _largest_by_share(kind):
        most = larger(most, elements / _cut(share, plan))
    return most


@lru_cache(maxsize=1024)
def _largest_by_share(kind: LayerKind) -> tuple[tuple[Share, int], ...]:
    """Return the elements of the largest weight among those that ranks divide in the same way."""
    sizes: dict[Share, int] = {}
    for linear in operators_of(kind, Linear):
        sizes[linear.share] = max(sizes.get(linear.share, 0), linear.inputs * linear.outputs * linear.copies)
    return tuple(sizes.items())


def _cut(share: Share, plan: Plan) -> Number:
    """Return the ranks that divide a weight."""
    if share == "expert":
        return plan.expert * plan.expert_tensor
    return plan.tensor if share == "split" else 1


def cached_gradients(layers: ModelLayers, plan: Plan, stage: Stage) -> Number:
    """Return the bytes of dummy gradients: Transformer Engine >= 2.3 keeps one for every distinct weight shape; experts
    share theirs."""
    shapes: dict[tuple[int, int, str], Number] = {}
    kinds = [kind for kind, _ in stage.kinds]
    for kind in [*kinds, layers.output] if stage.last else kinds:
        for operator in operators_of(kind, Linear):
            if operator.name not in ("router", ABSORBED) and not operator.untrained:
                cut = plan.expert_tensor if operator.share == "expert" else _cut(operator.share, plan)
                shape = (operator.inputs, operator.outputs, operator.share)
                shapes[shape] = 2 * operator.inputs * operator.outputs / cut
    return sum(shapes.values())
