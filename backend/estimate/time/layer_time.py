"""Seconds of one micro-batch through one layer on one rank, forward and backward.

The time of a pass is the sum of matrix products (arithmetic and operand traffic), attention, memory-bound kernels, the
start of every kernel, and exposed communication.
"""

from dataclasses import replace
from functools import reduce

from backend.estimate.array_ops import ZERO, Number, choose, larger
from backend.estimate.memory.megatron_sparse import keys_of
from backend.estimate.model.layers import LayerKind
from backend.estimate.model.load import Load
from backend.estimate.plan import Choice
from backend.estimate.time.adapter_work import adapter_work
from backend.estimate.time.attention_time import ATTENTION_BACKWARD, attention_seconds, more_kernels
from backend.estimate.time.communication import (
    Group,
    exchange_seconds,
    exposed,
    is_single_rank,
    merged_exchange_seconds,
    ring_seconds,
)
from backend.estimate.time.efficiency import FETCH_STARTS, LOOPED_START, MODULE_START, START_S
from backend.estimate.time.gemm import UNPACKING, gemm_seconds
from backend.estimate.time.kernels import LayerKernels, layer_kernels
from backend.estimate.time.passes import NO_EXTRA, NO_PASS, Extra, Pass, Passes
from backend.estimate.time.recomputed_layer import every_second_product, until_saved
from backend.estimate.time.shard_copies import copy_work
from backend.estimate.time.time_context import TimeContext
from backend.job.liger import NONE


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
    repeated: bool = False,
) -> Passes:
    """Return the passes through one layer of a kind on one rank.

    `inputs_need` says whether the layer's input needs a gradient. `adapted` says whether the layer has the adapters of
    the run. A layer of the vision tower is Hugging Face's module on every engine. Only full recompute reaches it, and
    only if it is `recomputable`. `repeated` says that the caller counts the recompute of a layer that is not.
    """
    run = time_context.run
    layer = layer_kernels(
        kind, run.fused and not tower, None, run.routing, run.rope_fused, NONE if tower else run.liger
    )
    ahead, back = adapter_work(kind, time_context, load) if adapted else (NO_EXTRA, NO_EXTRA)
    if weights_trained and run.memory.autocast_bytes:
        casts = _casts(layer, time_context)
        ahead, back = ahead.plus(casts), back.plus(casts)
    if run.sharding:
        copies, copies_back = copy_work(
            layer, time_context, load, trained=weights_trained, repeated=recomputable or repeated
        )
        ahead, back = ahead.plus(copies), back.plus(copies_back)
    forward, backward = _passes(layer, time_context, load, ahead, back, weights_trained, inputs_need)
    recomputed = NO_PASS
    if recomputable and backward is not NO_PASS:
        recomputed = _recomputed(kind, forward, ahead, time_context, load, modules_too=not tower)
    return Passes(forward, backward, recomputed)


def _recomputed(
    kind: LayerKind, forward: Pass, extra: Extra, time_context: TimeContext, load: Load, *, modules_too: bool
) -> Pass:
    plan = time_context.plan
    if not plan.recompute_choices:
        choice = (plan.recompute, plan.recompute_modules)
        return _recomputed_by(choice, kind, forward, extra, time_context, load, modules_too)
    chosen = [
        _recomputed_by(choice, kind, forward, extra, time_context, load, modules_too).times(
            plan.recompute_choice == index
        )
        for index, choice in enumerate(plan.recompute_choices)
    ]
    return reduce(Pass.plus, chosen)


def _recomputed_by(
    choice: Choice,
    kind: LayerKind,
    forward: Pass,
    extra: Extra,
    time_context: TimeContext,
    load: Load,
    modules_too: bool,
) -> Pass:
    """Return what one choice of recompute repeats of the forward pass."""
    recompute, modules = choice
    run = time_context.run
    if recompute == "full" and not run.stops_early:
        return forward
    if recompute == "full":
        targets = run.adapters.targets if run.adapters else None
        repeated = every_second_product(kind) if run.keeps_products else until_saved(kind, targets)
        layer = layer_kernels(
            repeated,
            run.fused and modules_too,
            None,
            run.routing,
            run.rope_fused,
            run.liger if modules_too else NONE,
        )
        if run.keeps_products:
            layer = replace(layer, attention=0.0)
        return _passes(layer, time_context, load, extra)[0].times(run.recomputed_layers)
    if not modules or not modules_too:
        return NO_PASS
    layer = layer_kernels(kind, run.fused, modules, run.routing, run.rope_fused, run.liger)
    return _passes(layer, time_context, load)[0]


def _casts(layer: LayerKernels, time_context: TimeContext) -> Extra:
    """Return the work of autocast, which casts fp32 weights to 16 bits before a pass, and their gradients back.

    A layer of Qwen3 with 11 parameters starts 12 operations more in transformers, for weights and for the outputs of
    norms with a weight in fp32, and 16 more in the backward pass.
    """
    elements = layer.weights_split + layer.weights_whole + layer.weights_expert
    return Extra(
        (4 + 2) * elements / time_context.machine.memory + START_S * layer.tensors, MODULE_START * layer.tensors
    )


def _passes(
    layer: LayerKernels,
    time_context: TimeContext,
    load: Load,
    extra: Extra = NO_EXTRA,
    extra_back: Extra = NO_EXTRA,
    weights_trained: bool = False,
    inputs_need: bool = False,
) -> tuple[Pass, Pass]:
    """Return the forward and the backward pass through the operators of a layer.

    `extra` and `extra_back` are their work beside these operators. There is no backward pass if nothing needs a
    gradient.
    """
    run = time_context.run
    gemm, weights = gemm_seconds(layer, time_context, load)
    attention = attention_back = context = context_back = ZERO
    if layer.attention:
        attention, attention_back = attention_seconds(layer, time_context, load)
        if not is_single_rank(load.context):
            context, context_back = _context(layer, time_context, load, attention, attention_back)
    if layer.recurrence:
        core_s = load.tokens * layer.recurrence / load.tensor / time_context.recurrence_speed
        attention, attention_back = attention + core_s, attention_back + ATTENTION_BACKWARD * core_s
    if layer.square:
        attention, attention_back = _square(layer, time_context, load)
        if not is_single_rank(load.context):
            context = context_back = _gathered_keys(layer, time_context, load)
    token_s = load.tokens / time_context.machine.memory
    moved = layer.moved_split / load.tensor + (layer.moved_whole + layer.moved_expert) * load.whole
    kernels = _kernels(layer, time_context, load)
    # Memory-bound kernels of Hugging Face's modules, and those that unpack 4-bit weights.
    unpacked = UNPACKING * layer.packed if run.unpacked else 0.0
    # One exchange over TP, before or after each split projection. An all-reduce takes as long as two of them.
    gather = run.element_bytes * load.tokens * layer.gathered * load.gather
    expert = _expert(layer, time_context, load) if layer.dispatched else ZERO
    compute = gemm + attention + token_s * moved
    if layer.untrained:
        # An indexer has no backward pass.
        compute = compute + _index(layer, time_context, load)
    started = _started(compute, layer, kernels, layer.small_kernels + unpacked, extra, time_context)
    forward = Pass(started, 2.0 * gather, context, expert)
    if not (weights_trained or inputs_need):
        return forward, NO_PASS
    moved_back = layer.moved_back_split / load.tensor + (layer.moved_back_whole + layer.moved_back_expert) * load.whole
    compute = attention_back + token_s * moved_back
    if inputs_need:
        compute = compute + gemm
    if weights_trained:
        compute = compute + weights
    if weights_trained and run.sums_apart:
        # Each gradient is added in one operation, which does not delay the host.
        tensors = layer.tensors + (layer.tensors_expert / load.expert if layer.tensors_expert else 0.0)
        compute = compute + time_context.efficiency.kernel_s * tensors
    kernels = 2.0 * kernels if weights_trained and inputs_need else kernels
    started = _started(compute, layer, kernels, layer.small_kernels_back + unpacked, extra_back, time_context)
    # Split projections have four exchanges; the gradient of a weight hides those that run beside it.
    return forward, Pass(started, gather if weights_trained else 2.0 * gather, context_back, expert)


def _kernels(layer: LayerKernels, time_context: TimeContext, load: Load) -> Number:
    """Return the number of kernels, those of tensor parallel communication included, but without small ones."""
    kernels: Number = layer.kernels
    if layer.outputs_gathered:
        kernels = kernels + choose(load.tensor > 1, 2.0 * layer.outputs_gathered, 0.0)
    if layer.attention:
        kernels = kernels + more_kernels(layer, time_context)
    if time_context.run.loops_over_experts:
        kernels = kernels + LOOPED_START * layer.loop_kernels
    return kernels + layer.kernels_expert / load.expert if layer.kernels_expert else kernels


def _index(layer: LayerKernels, time_context: TimeContext, load: Load) -> Number:
    """Return the seconds of an indexer, which every TP rank computes for all tokens. The GPU waits for the host in a
    loop over queries. The scores of Megatron-Core's are in _square."""
    flops = 2 * layer.untrained + load.length * layer.index
    moved = load.length * layer.index_moved
    looped = MODULE_START * layer.looped * time_context.efficiency.host_s
    return load.tokens * (flops / time_context.gemm_speed + moved / time_context.machine.memory + looped)


def _square(layer: LayerKernels, time_context: TimeContext, load: Load) -> tuple[Number, Number]:
    """Return the forward and backward seconds of attention over chosen keys and of its indexer's scores."""
    machine, plan = time_context.machine, time_context.plan
    pairs = load.tokens * keys_of(plan)
    split = pairs / load.tensor
    products = layer.square / time_context.gemm_speed + layer.square_single / time_context.single_speed
    index = pairs * (layer.index_single / time_context.single_speed + layer.pair_moved / machine.memory)
    forward_s = split * (products + layer.square_moved / machine.memory) + index
    return forward_s, split * (2 * products + layer.square_moved_back / machine.memory)


def _gathered_keys(layer: LayerKernels, time_context: TimeContext, load: Load) -> Number:
    """Return the seconds in which ranks of context parallelism gather keys before attention, or reduce their gradients
    after it."""
    size = time_context.run.element_bytes * load.tokens * load.context * layer.latent_key
    group = Group(load.context, load.tensor)
    return ring_seconds(size, group, time_context.machine, time_context.efficiency)


def _started(
    compute: Number,
    layer: LayerKernels,
    kernels: Number,
    small_kernels: Number,
    extra: Extra,
    time_context: TimeContext,
) -> Number:
    """Return the seconds of a pass: the GPU's time, or the host's time to start kernels and fetch weights if that is
    longer."""
    run, efficiency = time_context.run, time_context.efficiency
    on_gpu = compute + kernels * efficiency.kernel_s + START_S * small_kernels + extra.seconds
    if run.graphed:
        return on_gpu
    host = (1.0 if layer.fused else MODULE_START) * (kernels + small_kernels) + extra.host
    if run.fetches_modules:
        # The host fetches weights while the GPU waits.
        host = host + FETCH_STARTS * layer.modules
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
