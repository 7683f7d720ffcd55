"""Seconds of one micro-batch through one layer on one rank, forward and backward.

The time of a pass is the sum of matrix products (arithmetic and operand traffic), attention, memory-bound kernels, the
start of every kernel, and exposed communication.
"""

from dataclasses import replace
from functools import lru_cache, reduce

from backend.estimate.array_ops import ZERO, Number, choose, larger, smaller
from backend.estimate.frozen_dataclass import positional_dataclass
from backend.estimate.model.layers import LayerKind
from backend.estimate.model.load import Load
from backend.estimate.time.adapter_work import adapter_work
from backend.estimate.time.communication import (
    Group,
    exchange_seconds,
    exposed,
    is_single_rank,
    merged_exchange_seconds,
    ring_seconds,
)
from backend.estimate.time.efficiency import FETCH_STARTS, MODULE_START, START_S
from backend.estimate.time.gemm import UNPACKING, gemm_seconds
from backend.estimate.time.kernels import LayerKernels, layer_kernels
from backend.estimate.time.passes import NO_EXTRA, NO_PASS, Extra, Pass, Passes
from backend.estimate.time.time_context import TimeContext

ATTENTION_BACKWARD = 2.5
"""Fused attention computes the scores again in the backward pass: five products instead of two."""

UNFUSED_KERNELS = 4
"""Kernels of unfused attention beyond the fused kernel: megatron-core's dot_product_attention.py has two products,
softmax, dropout and a copy of the context, and twice as many in the backward pass."""

UNFUSED_SCORES = 13
"""Bytes per entry of the score matrix in unfused attention: product 2, softmax 4, dropout 5, product 2."""


@positional_dataclass
class _Costs:
    """Seconds of the parts of one layer, each done once."""

    gemm: Number
    weights: Number
    """Products that compute the gradients of weights."""
    attention: Number
    attention_back: Number
    moved: Number
    moved_back: Number
    kernels: Number
    """Number of kernels, those of tensor parallel communication included, but without those of the next two fields."""
    small_kernels: Number
    """Number of memory-bound kernels of Hugging Face's modules, and of those that unpack 4-bit weights."""
    small_kernels_back: Number
    start: float
    """Host time of a start in units of host_s: 1 in Transformer Engine's modules, else MODULE_START."""
    fetched: Number
    """Host time, in kernel starts, in which the host fetches weights while the GPU waits."""
    sums: Number
    """Kernel time of accumulating gradients: one operation each, which does not delay the host."""
    gather: Number
    """One exchange over TP, before or after each split projection."""
    context: Number
    """Exposed exchange of keys and values."""
    context_back: Number
    expert: Number
    index: Number
    """An indexer, which has no backward pass."""


def layer_passes(
    kind: LayerKind,
    time_context: TimeContext,
    load: Load,
    *,
    weights_trained: bool,
    inputs_need: bool,
    adapted: bool = False,
    tower: bool = False,
    recomputable: bool = True,
) -> Passes:
    """Return the passes through one layer of a kind on one rank.

    `inputs_need` says whether the layer's input needs a gradient. `adapted` says whether the layer has the adapters of
    the run. A layer of the vision tower is Hugging Face's module on every engine. Only full recompute reaches it, and
    only if it is `recomputable`.
    """
    run = time_context.run
    layer = layer_kernels(kind, run.fused and not tower, None, run.routing, run.rope_fused)
    costs = _costs(layer, time_context, load)
    ahead, back = adapter_work(kind, time_context, load) if adapted else (NO_EXTRA, NO_EXTRA)
    if weights_trained and run.memory.autocast_bytes:
        casts = _casts(layer, time_context)
        ahead, back = ahead.plus(casts), back.plus(casts)
    forward = _forward(costs, time_context, ahead)
    if not (weights_trained or inputs_need):
        return Passes(forward, NO_PASS, NO_PASS)
    backward = _backward(costs, time_context, back, weights_trained=weights_trained, inputs_need=inputs_need)
    recomputed = (
        _recomputed(kind, forward, ahead, time_context, load, modules_too=not tower) if recomputable else NO_PASS
    )
    return Passes(forward, backward, recomputed)


def _recomputed(
    kind: LayerKind, forward: Pass, extra: Extra, time_context: TimeContext, load: Load, *, modules_too: bool
) -> Pass:
    plan, run = time_context.plan, time_context.run
    if plan.recompute == "none" and not plan.recompute_choices:
        return NO_PASS

    def by(recompute: str, modules: tuple[str, ...]) -> Pass:
        if recompute == "full" and not run.stops_early:
            return forward
        if recompute == "full":
            layer = layer_kernels(_but_the_last(kind), run.fused and modules_too, None, run.routing, run.rope_fused)
            return _forward(_costs(layer, time_context, load), time_context, extra)
        if not modules or not modules_too:
            return NO_PASS
        layer = layer_kernels(kind, run.fused, modules, run.routing, run.rope_fused)
        return _forward(_costs(layer, time_context, load), time_context)

    if not plan.recompute_choices:
        return by(plan.recompute, plan.recompute_modules)
    chosen = [by(*choice).times(plan.recompute_choice == index) for index, choice in enumerate(plan.recompute_choices)]
    return reduce(Pass.plus, chosen)


@lru_cache(maxsize=256)
def _but_the_last(kind: LayerKind) -> LayerKind:
    """Return the layer without its last operator."""
    return replace(kind, operators=kind.operators[:-1])


def _casts(layer: LayerKernels, time_context: TimeContext) -> Extra:
    """Return the work of autocast, which casts fp32 weights to 16 bits before a pass, and their gradients back.

    A layer of Qwen3 with 11 parameters starts 12 operations more in transformers, for weights and for the outputs of
    norms with a weight in fp32, and 16 more in the backward pass.
    """
    elements = layer.weights_split + layer.weights_whole + layer.weights_expert
    return Extra(
        (4 + 2) * elements / time_context.machine.memory + START_S * layer.tensors, MODULE_START * layer.tensors
    )


def _costs(layer: LayerKernels, time_context: TimeContext, load: Load) -> _Costs:
    run, plan, machine = time_context.run, time_context.plan, time_context.machine
    gemm, weights = gemm_seconds(layer, time_context, load)
    attention = attention_back = context = context_back = ZERO
    if layer.attention:
        attention, attention_back = _attention(layer, time_context, load)
        if not is_single_rank(load.context):
            context, context_back = _context(layer, time_context, load, attention, attention_back)
    split = choose(load.tensor > 1, 2 * layer.outputs_gathered, 0)
    moved = layer.moved_split / load.tensor + (layer.moved_whole + layer.moved_expert) * load.whole
    moved_back = layer.moved_back_split / load.tensor + (layer.moved_back_whole + layer.moved_back_expert) * load.whole
    token_s = load.tokens / machine.memory
    kernels = layer.kernels + split
    unpacked = UNPACKING * layer.packed if run.unpacked else 0
    if layer.attention and (layer.stores_scores or not plan.flash_attention):
        kernels = kernels + UNFUSED_KERNELS
    if layer.kernels_expert:
        kernels = kernels + layer.kernels_expert / load.expert
    sums = ZERO
    if run.sums_apart:
        tensors = layer.tensors + (layer.tensors_expert / load.expert if layer.tensors_expert else 0)
        sums = time_context.efficiency.kernel_s * tensors
    if layer.recurrence:
        # Its kernels are assumed to be as fast as flash attention.
        core_s = load.tokens * layer.recurrence / load.tensor / time_context.flash_attention_speed
        attention, attention_back = attention + core_s, attention_back + ATTENTION_BACKWARD * core_s
    return _Costs(
        gemm,
        weights,
        attention,
        attention_back,
        token_s * moved,
        token_s * moved_back,
        kernels,
        layer.small_kernels + unpacked,
        layer.small_kernels_back + unpacked,
        1.0 if layer.fused else MODULE_START,
        FETCH_STARTS * layer.modules if run.fetches_modules else 0,
        sums,
        run.element_bytes * load.tokens * layer.gathered * load.gather,
        context,
        context_back,
        _expert(layer, time_context, load) if layer.dispatched else 0.0,
        _index(layer, time_context, load) if layer.index else 0.0,
    )


def _index(layer: LayerKernels, time_context: TimeContext, load: Load) -> Number:
    """Return the seconds of an indexer. Hugging Face engines alone run it, without tensor parallelism. The GPU waits
    for the host in a loop over queries."""
    flops = 2 * layer.untrained + load.length * layer.index
    moved = load.length * layer.index_moved
    looped = MODULE_START * layer.looped * time_context.efficiency.host_s
    return load.tokens * (flops / time_context.gemm_speed + moved / time_context.machine.memory + looped)


def _attention(layer: LayerKernels, time_context: TimeContext, load: Load) -> tuple[Number, Number]:
    """Return the forward and backward seconds of the attention core."""
    length = load.length
    if layer.window:
        # A token attends to half of the sequence, or to the whole window.
        length = smaller(length, (2 if layer.causal else 1) * layer.window)
    flops = load.tokens * length * layer.attention / load.tensor
    if time_context.plan.flash_attention and not layer.stores_scores:
        own = layer.fused and not time_context.run.compiled
        speed = time_context.attention_speed if own else time_context.flash_attention_speed
        forward_s = (0.5 if layer.causal else 1.0) * flops / speed
        return forward_s, ATTENTION_BACKWARD * forward_s
    entries = load.tokens * length * layer.scores / load.tensor
    forward_s = flops / time_context.gemm_speed + UNFUSED_SCORES * entries / time_context.machine.memory
    return forward_s, 2 * forward_s


def _forward(costs: _Costs, time_context: TimeContext, extra: Extra = NO_EXTRA) -> Pass:
    compute = costs.gemm + costs.attention + costs.moved + costs.index
    # Split projections have a gather before and a reduction after them; one all-reduce takes as long.
    return Pass(
        _started(compute, costs, costs.kernels, costs.small_kernels, extra, time_context),
        2 * costs.gather,
        costs.context,
        costs.expert,
    )


def _backward(
    costs: _Costs, time_context: TimeContext, extra: Extra, *, weights_trained: bool, inputs_need: bool
) -> Pass:
    compute = costs.attention_back + costs.moved_back
    if inputs_need:
        compute = compute + costs.gemm
    if weights_trained:
        compute = compute + costs.weights + costs.sums
    # Split projections have four exchanges; the gradient of a weight hides those that run beside it.
    return Pass(
        _started(
            compute,
            costs,
            (weights_trained + inputs_need) * costs.kernels,
            costs.small_kernels_back,
            extra,
            time_context,
        ),
        costs.gather if weights_trained else 2 * costs.gather,
        costs.context_back,
        costs.expert,
    )


def _started(
    compute: Number,
    costs: _Costs,
    kernels: Number,
    small_kernels: Number,
    extra: Extra,
    time_context: TimeContext,
) -> Number:
    """Return the seconds of a pass: the GPU's time, or the host's time to start kernels and fetch weights if that is
    longer."""
    efficiency = time_context.efficiency
    on_gpu = compute + kernels * efficiency.kernel_s + START_S * small_kernels + extra.seconds
    if time_context.run.graphed:
        return on_gpu
    host = costs.start * (kernels + small_kernels) + extra.host + costs.fetched
    return larger(on_gpu, host * efficiency.host_s)


def _context(
    layer: LayerKernels, time_context: TimeContext, load: Load, attention: Number, attention_back: Number
) -> tuple[Number, Number]:
    """Return the exposed seconds of context parallelism, forward and backward. A ring overlaps with attention, and runs
    twice in the backward pass; an all-to-all is fully exposed."""
    group = Group(load.context, load.tensor)
    per_token = time_context.run.element_bytes * load.tokens / load.tensor
    if time_context.plan.context_a2a:
        size = per_token * (layer.keys + layer.queries)
        waited = exchange_seconds(size, group, time_context.machine, time_context.efficiency)
        return waited, 2 * waited
    seconds = ring_seconds(per_token * layer.keys * load.context, group, time_context.machine, time_context.efficiency)
    forward_s = exposed(seconds, attention, time_context.efficiency)
    return forward_s, 2 * exposed(seconds, attention_back / 2, time_context.efficiency)


def _expert(layer: LayerKernels, time_context: TimeContext, load: Load) -> Number:
    """Return the seconds to send tokens to their experts and back; with ETP they are gathered there."""
    machine, efficiency, run = time_context.machine, time_context.efficiency, time_context.run
    sent = run.element_bytes * load.tokens * load.whole * layer.dispatched
    group = Group(load.expert, load.expert_tensor)
    if run.merged_exchange:
        seconds = 2 * merged_exchange_seconds(sent, layer.dispatched / layer.hidden, group, machine)
    else:
        seconds = 2 * exchange_seconds(sent, group, machine, efficiency)
    if run.overlap_expert:
        seconds = seconds * (1 - efficiency.overlap_share)
    if is_single_rank(load.expert_tensor):
        return seconds
    return seconds + 2 * ring_seconds(sent * load.expert_tensor, Group(load.expert_tensor, 1), machine, efficiency)
