"""Seconds of one micro-batch through one layer, there and back, on one rank.

A pass through a layer is the sum of its matrix products (arithmetic and the bytes of their operands), its attention,
its memory-bound kernels, a start of every kernel, and the communication that nothing hides.
"""

from dataclasses import replace
from functools import lru_cache, reduce

from backend.estimate.array_ops import ZERO, Number, choose, larger, smaller
from backend.estimate.frozen_dataclass import short_record
from backend.estimate.model.layers import LayerKind
from backend.estimate.model.load import Load
from backend.estimate.time.adapter_work import adapter_seconds
from backend.estimate.time.communication import (
    Group,
    alone,
    exchange_seconds,
    exposed,
    merged_exchange_seconds,
    ring_seconds,
)
from backend.estimate.time.gemm import UNPACKING, product_seconds
from backend.estimate.time.kernels import Operations, operations
from backend.estimate.time.passes import NOTHING, Pass, Passes
from backend.estimate.time.time_context import Setting

ATTENTION_BACKWARD = 2.5
"""Fused attention computes the scores again in backward: five products instead of two."""

UNFUSED_KERNELS = 4
"""Started where attention is not fused, beside the one that does it all: megatron-core's dot_product_attention.py has
two products, softmax, dropout and a copy of the context; twice as many back."""

FETCHED = 5
"""Starts of kernels that the host could do while DeepSpeed's ZeRO-3 has a module's weights fetched before a pass and
released after it (runtime/zero/parameter_offload.py, partitioned_param_coordinator.py). In 0.18.4 on a CPU, where both
are Python alone, it takes 150 us beside 20 for a start; full fine-tuning of Qwen-1.8B as published says 5.5."""

UNFUSED_SCORES = 13
"""Bytes an entry of the score matrix moves where attention is not fused: product 2, softmax 4, dropout 5, product 2."""


@short_record
class _Costs:
    """Seconds of one layer's parts, each done once."""

    products: Number
    weights: Number
    """The products that make the weights' gradients."""
    attention: Number
    attention_back: Number
    moved: Number
    moved_back: Number
    kernels: Number
    """Started, those of tensor parallel communication too."""
    fetched: Number
    """Starts that the host could do while it fetches weights; the GPU waits for it, not they for the GPU."""
    sums: Number
    """Starts of what accumulates gradients; one operation each, which does not hold up the host."""
    gather: Number
    """Exchanges over TP: one before or after each of the split projections."""
    context: Number
    """What is exposed of the exchange of keys and values."""
    context_back: Number
    expert: Number


def layer_passes(
    kind: LayerKind,
    setting: Setting,
    load: Load,
    *,
    weights_trained: bool,
    inputs_need: bool,
    adapted: bool = False,
    tower: bool = False,
    recomputable: bool = True,
) -> Passes:
    """One layer of a kind on one rank.

    `inputs_need`: a gradient goes on to what comes before; `adapted`: through adapters too, if the run has any. A
    layer of the vision tower is Hugging Face's module on any engine, and only full recompute reaches it, if it is
    `recomputable` at all.
    """
    run = setting.run
    done = operations(kind, run.fused and not tower, routing=run.routing, rope_fused=run.rope_fused)
    costs = _costs(done, setting, load)
    there, back = adapter_seconds(kind, setting, load) if adapted else (0.0, 0.0)
    forward = _forward(costs, setting, there)
    if not (weights_trained or inputs_need):
        return Passes(forward, NOTHING, NOTHING)
    backward = _backward(costs, setting, back, weights_trained=weights_trained, inputs_need=inputs_need)
    again = _recomputed(kind, forward, there, setting, load, modules_too=not tower) if recomputable else NOTHING
    return Passes(forward, backward, again)


def _recomputed(
    kind: LayerKind, forward: Pass, adapters: Number, setting: Setting, load: Load, *, modules_too: bool
) -> Pass:
    plan = setting.plan

    def by(recompute: str, modules: tuple[str, ...]) -> Pass:
        run = setting.run
        if recompute == "full" and not run.stops_early:
            return forward
        if recompute == "full":
            fused = run.fused and modules_too
            done = operations(_but_the_last(kind), fused, routing=run.routing, rope_fused=run.rope_fused)
            return _forward(_costs(done, setting, load), setting, adapters)
        if not modules or not modules_too:
            return NOTHING
        done = operations(kind, run.fused, modules, routing=run.routing, rope_fused=run.rope_fused)
        return _forward(_costs(done, setting, load), setting)

    if not plan.recompute_choices:
        return by(plan.recompute, plan.recompute_modules)
    chosen = [by(*choice).times(plan.recompute_choice == place) for place, choice in enumerate(plan.recompute_choices)]
    return reduce(Pass.plus, chosen)


@lru_cache(maxsize=256)
def _but_the_last(kind: LayerKind) -> LayerKind:
    """A layer without its last operator."""
    return replace(kind, operators=kind.operators[:-1])


def _costs(done: Operations, setting: Setting, load: Load) -> _Costs:
    products, weights = product_seconds(done, setting, load)
    attention, attention_back, context, context_back = ZERO, ZERO, ZERO, ZERO
    if done.attention:
        attention, attention_back = _attention(done, setting, load)
        if not alone(load.context):
            context, context_back = _context(done, setting, load, attention, attention_back)
    split = choose(load.tensor > 1, 2 * done.outputs_gathered, 0)
    moved = done.moved_split / load.tensor + (done.moved_whole + done.moved_expert) * load.whole
    moved_back = done.moved_back_split / load.tensor + (done.moved_back_whole + done.moved_back_expert) * load.whole
    token_s = load.tokens / setting.machine.memory
    kernels = done.kernels + split
    if setting.run.unpacked:
        kernels = kernels + UNPACKING * done.packed
    if done.attention and not setting.plan.flash_attention:
        kernels = kernels + UNFUSED_KERNELS
    if done.kernels_expert:
        kernels = kernels + done.kernels_expert / load.expert
    sums = ZERO
    if setting.run.sums_apart:
        tensors = done.tensors + (done.tensors_expert / load.expert if done.tensors_expert else 0)
        sums = setting.efficiency.kernel_s * tensors
    return _Costs(
        products,
        weights,
        attention,
        attention_back,
        token_s * moved,
        token_s * moved_back,
        kernels,
        FETCHED * done.modules if setting.run.fetches_modules else 0,
        sums,
        setting.run.element_bytes * load.tokens * done.gathered * load.gather,
        context,
        context_back,
        _expert(done, setting, load) if done.dispatched else 0.0,
    )


def _attention(done: Operations, setting: Setting, load: Load) -> tuple[Number, Number]:
    """Seconds of the attention core, there and back."""
    length = load.length
    if done.windowed:
        # A token sees half the sequence, or all of the window.
        seen = smaller(length, (2 if done.causal else 1) * done.window)
        length = (1 - done.windowed) * length + done.windowed * seen
    flops = load.tokens * length * done.attention / load.tensor
    if setting.plan.flash_attention:
        own = done.fused and not setting.run.compiled
        speed = setting.attention_speed if own else setting.flash_attention_speed
        there = (0.5 if done.causal else 1.0) * flops / speed
        return there, ATTENTION_BACKWARD * there
    entries = load.tokens * length * done.scores / load.tensor
    there = flops / setting.product_speed + UNFUSED_SCORES * entries / setting.machine.memory
    return there, 2 * there


def _forward(costs: _Costs, setting: Setting, adapters: Number = 0.0) -> Pass:
    compute = costs.products + costs.attention + costs.moved + adapters
    # A gather before and a reduction after the split projections; without sequence parallel one all-reduce, the same.
    return Pass(
        _started(compute, costs.kernels, costs.fetched, setting),
        2 * costs.gather,
        costs.context,
        costs.expert,
    )


def _backward(costs: _Costs, setting: Setting, adapters: Number, *, weights_trained: bool, inputs_need: bool) -> Pass:
    compute = costs.attention_back + costs.moved_back + adapters
    if inputs_need:
        compute = compute + costs.products
    if weights_trained:
        compute = compute + costs.weights + costs.sums
    # Of the split projections' four exchanges, those beside a weight's gradient are hidden behind it.
    return Pass(
        _started(compute, (weights_trained + inputs_need) * costs.kernels, costs.fetched, setting),
        costs.gather if weights_trained else 2 * costs.gather,
        costs.context_back,
        costs.expert,
    )


def _started(compute: Number, kernels: Number, fetched: Number, setting: Setting) -> Number:
    """The host starts kernels, and fetches weights, while earlier ones run; the slower of both waits."""
    efficiency = setting.efficiency
    on_gpu = compute + kernels * efficiency.kernel_s
    return on_gpu if setting.run.graphed else larger(on_gpu, (kernels + fetched) * efficiency.host_s)


def _context(
    done: Operations, setting: Setting, load: Load, attention: Number, attention_back: Number
) -> tuple[Number, Number]:
    """Exposed seconds there and back: a ring runs beside the attention, once and twice; an all-to-all waits."""
    group = Group(load.context, load.tensor)
    per_token = setting.run.element_bytes * load.tokens / load.tensor
    if setting.plan.context_a2a:
        size = per_token * (done.keys + done.queries)
        waited = exchange_seconds(size, group, setting.machine, setting.efficiency)
        return waited, 2 * waited
    seconds = ring_seconds(per_token * done.keys * load.context, group, setting.machine, setting.efficiency)
    there = exposed(seconds, attention, setting.efficiency)
    return there, 2 * exposed(seconds, attention_back / 2, setting.efficiency)


def _expert(done: Operations, setting: Setting, load: Load) -> Number:
    """Tokens to their experts and back; with ETP, gathered there."""
    machine, efficiency, run = setting.machine, setting.efficiency, setting.run
    sent = run.element_bytes * load.tokens * load.whole * done.dispatched
    group = Group(load.expert, load.expert_tensor)
    if run.merged_exchange:
        seconds = 2 * merged_exchange_seconds(sent, done.dispatched / done.hidden, group, machine)
    else:
        seconds = 2 * exchange_seconds(sent, group, machine, efficiency)
    if run.overlap_expert:
        seconds = seconds * (1 - efficiency.overlap_share)
    if alone(load.expert_tensor):
        return seconds
    return seconds + 2 * ring_seconds(sent * load.expert_tensor, Group(load.expert_tensor, 1), machine, efficiency)
