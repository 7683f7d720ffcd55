"""Seconds of one micro-batch through one layer, there and back, on one rank.

A pass through a layer is the sum of its matrix products (arithmetic and the bytes of their operands), its attention,
its memory-bound kernels, a start of every kernel, and the communication that nothing hides.
"""

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from backend.estimate.communication import Group, exchange_seconds, exposed, ring_seconds
from backend.estimate.efficiency import Efficiency, Machine
from backend.estimate.layers import LayerKind
from backend.estimate.numeric import Number, choose, largest
from backend.estimate.operations import Operations, operations
from backend.estimate.plan import Plan
from backend.job.traits import MemoryTraits

ATTENTION_BACKWARD = 2.5
"""Fused attention computes the scores again in backward: five products instead of two."""

MOVED_BACKWARD = 1.6
"""Bytes of memory-bound kernels, backward over forward: a norm reads its input and a gradient and writes one (6 against
4 bytes an element), a residual sum is as large, SwiGLU reads three and writes two (10 against 6)."""

TILE_ROWS = 128
"""Rows of a matrix product that are computed together: those of cuBLAS's and CUTLASS's large tiles."""

UNFUSED_SCORES = 13
"""Bytes an entry of the score matrix moves where attention is not fused: product 2, softmax 4, dropout 5, product 2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """How an engine runs a step, as far as its time depends on it."""

    fused: bool = True
    """Transformer Engine's kernels, not Hugging Face's modules."""
    memory: MemoryTraits
    element_bytes: int = 2
    """Of what kernels read and write."""
    overlap_gradients: bool = False
    """Gradients are reduced while the last backward runs."""
    overlap_parameters: bool = False
    """Parameters are gathered while the first forward runs."""
    overlap_tensor: bool = False
    """Tensor parallel communication runs inside the products (user buffers)."""
    overlap_sends: bool = False
    """Interleaved schedule: messages between stages run beside the other chunk's work."""
    overlap_expert: bool = False
    """Tokens travel to and from their experts beside another micro-batch's computation."""
    one_copy_a_node: bool = False
    """A token goes to each node once, however many of its experts are there (DeepEP, HybridEP)."""
    megatron: bool = True
    reference: bool = False
    """A frozen model judges every micro-batch too (DPO)."""
    unpacked: bool = False
    """4-bit weights are unpacked before every product (QLoRA)."""


class Pass(NamedTuple):
    """Seconds of one micro-batch through something, in one direction."""

    compute: Number
    tensor: Number
    context: Number
    expert: Number

    @property
    def total(self) -> Number:
        return self.compute + self.tensor + self.context + self.expert

    def times(self, count: Number) -> "Pass":
        return Pass(count * self.compute, count * self.tensor, count * self.context, count * self.expert)

    def plus(self, other: "Pass") -> "Pass":
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
        return Passes(self.forward.times(count), self.backward.times(count), self.recomputed.times(count))

    def plus(self, other: "Passes") -> "Passes":
        return Passes(
            self.forward.plus(other.forward),
            self.backward.plus(other.backward),
            self.recomputed.plus(other.recomputed),
        )


NO_PASSES = Passes(NOTHING, NOTHING, NOTHING)


class Setting(NamedTuple):
    """What every formula of a plan's time reads."""

    plan: Plan
    machine: Machine
    efficiency: Efficiency
    run: Execution

    @property
    def product_speed(self) -> Number:
        return self.machine.products * self.efficiency.product_share * self.efficiency.sustained(self.machine.peak)

    @property
    def attention_speed(self) -> Number:
        return self.machine.peak * self.efficiency.attention_share * self.efficiency.sustained(self.machine.peak)

    @property
    def memory_speed(self) -> Number:
        return self.machine.memory * self.efficiency.memory_share


def layer_passes(kind: LayerKind, setting: Setting, *, weights_trained: bool, inputs_need: bool) -> Passes:
    """One layer of a kind on one rank; `inputs_need`: a gradient goes on to what comes before."""
    whole = operations(kind, fused=setting.run.fused)
    forward = _forward(whole, setting)
    if not (weights_trained or inputs_need):
        return Passes(forward, NOTHING, NOTHING)
    backward = _backward(whole, setting, weights_trained=weights_trained, inputs_need=inputs_need)
    return Passes(forward, backward, _recomputed(kind, forward, setting))


def _recomputed(kind: LayerKind, forward: Pass, setting: Setting) -> Pass:
    plan = setting.plan

    def by(recompute: str, modules: tuple[str, ...]) -> Pass:
        if recompute == "full" or not modules:
            return forward if recompute == "full" else NOTHING
        return _forward(operations(kind, fused=setting.run.fused, only=modules), setting)

    if not plan.recompute_choices:
        return by(plan.recompute, plan.recompute_modules)
    chosen = [by(*choice).times(plan.recompute_choice == place) for place, choice in enumerate(plan.recompute_choices)]
    return reduce(Pass.plus, chosen)


def _products(done: Operations, setting: Setting, *, of_weights: bool = False) -> Number:
    """Seconds of all projections once over: their arithmetic, and operands through memory.

    `of_weights`: the gradients of the weights, which are added to the accumulated ones.
    """
    plan = setting.plan
    tensor, tokens, whole = plan.tensor, plan.tokens, plan.whole_share
    work = done.products_split / tensor + done.products_whole * whole
    operands = done.operands_full + done.operands_split / tensor
    weights = done.weights_split / tensor + done.weights_whole
    if done.weights_expert:
        held = done.weights_expert / (plan.expert * plan.expert_tensor)
        weights = weights + held
        # Each expert's rows fill whole tiles.
        work = work + done.products_expert * whole + TILE_ROWS / 2 * held / tokens
        operands = operands + done.operands_expert * whole
    weight_bytes = 2 * setting.run.memory.gradient_bytes if of_weights else setting.run.element_bytes
    moved = weight_bytes * weights + setting.run.element_bytes * tokens * operands
    return 2 * tokens * work / setting.product_speed + moved / setting.memory_speed


def _attention(done: Operations, setting: Setting, direction: float) -> Number:
    plan = setting.plan
    if not done.attention:
        return 0.0
    flops = plan.tokens * plan.sequence_length * done.attention / plan.tensor
    if plan.flash_attention:
        seen = flops / 2 if done.causal else flops
        return direction * seen / setting.attention_speed
    entries = plan.tokens * plan.sequence_length * done.scores / plan.tensor
    least_direction = 2 if direction > 1 else 1
    return least_direction * (flops / setting.product_speed + UNFUSED_SCORES * entries / setting.memory_speed)


def _moved(done: Operations, setting: Setting) -> Number:
    plan = setting.plan
    each = done.moved_split / plan.tensor + (done.moved_whole + done.moved_expert) * plan.whole_share
    return plan.tokens * each / setting.memory_speed


def _forward(done: Operations, setting: Setting) -> Pass:
    attention = _attention(done, setting, 1.0)
    compute = _products(done, setting) + attention + _moved(done, setting)
    compute = _started(compute, done, setting, 1.0)
    # A gather before and a reduction after the split projections; without sequence parallel one all-reduce, the same.
    tensor = _tensor(done, setting, gathers=2)
    return Pass(compute, tensor, _context(done, setting, attention), _expert(done, setting))


def _backward(done: Operations, setting: Setting, *, weights_trained: bool, inputs_need: bool) -> Pass:
    attention = _attention(done, setting, ATTENTION_BACKWARD)
    compute = attention + MOVED_BACKWARD * _moved(done, setting)
    kernels = 1.0
    if inputs_need:
        compute = compute + _products(done, setting)
    if weights_trained:
        compute = compute + _products(done, setting, of_weights=True)
        kernels += inputs_need
    compute = _started(compute, done, setting, kernels)
    # Of the split projections' four exchanges, those beside a weight's gradient are hidden behind it.
    tensor = _tensor(done, setting, gathers=1 if weights_trained else 2)
    return Pass(compute, tensor, 2 * _context(done, setting, attention / 2), _expert(done, setting))


def _started(compute: Number, done: Operations, setting: Setting, times: float) -> Number:
    """The host starts kernels, those of tensor parallel communication too, while earlier ones run; the slower waits."""
    plan, efficiency = setting.plan, setting.efficiency
    kernels = times * (done.kernels + choose(plan.tensor > 1, 4 * done.outputs_gathered, 0))
    return largest(compute + kernels * efficiency.kernel_s, kernels * efficiency.host_s)


def _tensor(done: Operations, setting: Setting, *, gathers: int) -> Number:
    plan = setting.plan
    if not done.outputs_gathered:
        return 0.0
    group = Group(plan.tensor, 1)
    size = setting.run.element_bytes * plan.tokens * done.gathered / done.outputs_gathered
    seconds = gathers * done.outputs_gathered * ring_seconds(size, group, setting.machine, setting.efficiency)
    if setting.run.overlap_tensor:
        seconds = seconds * (1 - setting.efficiency.overlap_share)
    return choose(plan.tensor > 1, seconds, 0.0)


def _context(done: Operations, setting: Setting, attention: Number) -> Number:
    """A ring passes keys and values on beside the attention; an all-to-all waits."""
    plan = setting.plan
    if not done.attention:
        return 0.0
    group = Group(plan.context, plan.tensor)
    per_token = setting.run.element_bytes * plan.tokens / plan.tensor
    if plan.context_a2a:
        size = per_token * (done.keys + done.queries)
        seconds = exchange_seconds(size, group, setting.machine, setting.efficiency)
    else:
        whole = per_token * done.keys * plan.context
        ring = ring_seconds(whole, group, setting.machine, setting.efficiency)
        seconds = exposed(ring, attention, setting.efficiency)
    return choose(plan.context > 1, seconds, 0.0)


def _expert(done: Operations, setting: Setting) -> Number:
    """Tokens to their experts and back; with ETP, gathered there."""
    plan = setting.plan
    if not done.dispatched:
        return 0.0
    sent = setting.run.element_bytes * plan.tokens * plan.whole_share * done.dispatched
    group = Group(plan.expert, plan.expert_tensor)
    copies = done.dispatched / done.hidden if setting.run.one_copy_a_node else 1.0
    seconds = 2 * exchange_seconds(sent, group, setting.machine, setting.efficiency, copies=copies)
    if setting.run.overlap_expert:
        seconds = seconds * (1 - setting.efficiency.overlap_share)
    inner = 2 * ring_seconds(
        sent * plan.expert_tensor, Group(plan.expert_tensor, 1), setting.machine, setting.efficiency
    )
    return choose(plan.expert > 1, seconds, 0.0) + choose(plan.expert_tensor > 1, inner, 0.0)
