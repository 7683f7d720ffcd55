"""Bytes per token that one layer keeps for its backward pass, from its operators.

There are two implementations: Transformer Engine's fused modules (`fused_bytes`) and Hugging Face's modules
(`eager_bytes`). The fused sums were compared with published B200 runs (benchmarks/accuracy.py), and the eager sums with
the tensors that torch's autograd saves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from backend.estimate.array_ops import Number
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.model.layers import LayerKind
from backend.job.memory_traits import Fp8
from backend.job.model.operators import (
    CHUNK,
    Activation,
    AltUp,
    Attention,
    ChosenKeys,
    Dispatch,
    Keep,
    Linear,
    Mixing,
    Norm,
    Operator,
    Recurrence,
    Streams,
)

NOT_ADAPTED = (
    "router", "modality_router", "altup_projections", "altup_unembed_projections", "linear_left", "merge_convolution",
)  # fmt: skip
"""Projections without adapters, unless the family names their modules. PEFT refuses a router that returns several
tensors. `all` does not run on Gemma 3n, and the targets that replace it leave out AltUp and Laurel
(backend/job/rules/adapters.py)."""

Spread = Literal["whole", "split", "groups", "routed", "dispatched", "gathered"]


@frozen_dataclass
class SavedBytes:
    """Bytes per token of one layer, by their distribution over ranks. Context parallelism, which divides all, is not
    included."""

    whole: Number = 0.0
    """Divided by TP only with sequence parallelism."""
    split: Number = 0.0
    """Divided by TP."""
    groups: Number = 0.0
    """Keys and values: divided by TP, but with at least one head per rank."""
    routed: Number = 0.0
    """Bytes of tokens at their experts, distributed like `whole`. EP does not divide them, because each rank has its
    own tokens."""
    dispatched: Number = 0.0
    """Copies that are sent to the experts, like `routed`. Each of the ETP ranks holds all of them."""
    gathered: Number = 0.0
    """What sequence parallelism would split, and one rank holds for the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Item:
    spread: Spread
    bytes: float
    dropped_by: tuple[str, ...] = ()
    """The recompute modules that do not keep it."""
    weight_only: bool = False
    """Only the gradient of a weight needs it: it is not kept if the weight is frozen."""


@lru_cache(maxsize=1024)
def fused_bytes(
    kind: LayerKind,
    recomputed: tuple[str, ...] = (),
    trained: bool = True,
    context_a2a: bool = False,
    fp8: Fp8 | None = None,
) -> SavedBytes:
    """Return the saved bytes under Transformer Engine with flash attention, in bf16 or fp16; `fp8`: how the inputs of
    linear modules are saved in 8 bits."""
    items = _items(kind, context_a2a, fp8)
    return _sum(item for item in items if (trained or not item.weight_only) and not {*item.dropped_by} & {*recomputed})


@lru_cache(maxsize=1024)
def recomputed_bytes(kind: LayerKind, recomputed: tuple[str, ...], fp8: Fp8 | None = None) -> SavedBytes:
    """Return the bytes that the recomputed modules of one layer restore during its backward pass."""
    return _sum(item for item in _items(kind, False, fp8) if {*item.dropped_by} & {*recomputed})


def _items(kind: LayerKind, context_a2a: bool, fp8: Fp8 | None) -> Iterator[_Item]:
    saved = fp8.input_bytes if fp8 else 2
    for operator, after in zip(kind.operators, (*kind.operators[1:], None), strict=True):
        if isinstance(operator, Norm):
            yield from _norm_items(operator, saved, in_mlp=isinstance(after, Linear) and after.name == "up")
        elif isinstance(operator, Attention):
            yield from _attention_items(operator, context_a2a, copied=bool(fp8 and fp8.copies_attention))
        elif isinstance(operator, ChosenKeys):
            # Projected queries, and the output of all heads, which the next projection reads; the core's own tensors
            # are in megatron_sparse.py.
            projected = 2 * operator.heads * (operator.plain + operator.rotary)
            yield _Item(spread="split", bytes=projected, dropped_by=("mla_up_proj",))
            yield _Item(spread="split", bytes=2 * operator.heads * operator.value_dim, weight_only=True)
        elif isinstance(operator, Activation):
            yield from _activation_items(operator, saved)
        elif isinstance(operator, Dispatch):
            bytes_sent = saved * operator.top_k * operator.hidden
            yield _Item(spread="dispatched", bytes=bytes_sent, dropped_by=("moe",), weight_only=True)
            yield _Item(spread="routed", bytes=8 * operator.experts, dropped_by=("moe",))
        elif isinstance(operator, Keep):
            spread: Spread = "split" if operator.split else "gathered" if operator.gathered else "whole"
            yield _Item(spread=spread, bytes=operator.bytes * operator.width, weight_only=operator.weight_only)
        elif isinstance(operator, Recurrence):
            yield _Item(spread="split", bytes=_recurrence_bytes(operator))
        elif isinstance(operator, Mixing):
            yield _Item(spread="split", bytes=operator.saved_bytes)
        elif isinstance(operator, AltUp):
            # No Megatron engine trains such a model; these are the bytes of transformers' modules.
            yield _Item(spread="whole", bytes=operator.width * _eager_altup(operator, EagerForm()))


def _norm_items(norm: Norm, saved: float, *, in_mlp: bool) -> Iterator[_Item]:
    """Yield the input, and the output, which the next projection needs for the gradient of its weight.

    In FP8 it is in 8 bits if the norm is part of the projection. After a separate norm, two projections of latent
    attention save a copy each, and router and shared experts the 16-bit output (megatron-core 0.16.1
    transformer/moe/shared_experts.py set_save_original_input).
    """
    if norm.heads:
        yield _Item(spread="split", bytes=2 * norm.width)
        return
    # mcore's `mlp` recompute includes the fused norm; `layernorm` affects only norms that are separate modules.
    dropped = ("mlp",) if in_mlp else ("layernorm",) if norm.detached else ()
    yield _Item(spread="whole", bytes=2 * norm.width)
    if norm.is_joined:
        return
    output = 2 if norm.detached else saved
    yield _Item(spread="whole", bytes=output * norm.width, dropped_by=dropped, weight_only=True)


def _attention_items(attention: Attention, context_a2a: bool, *, copied: bool) -> Iterator[_Item]:
    """Yield query, key, value, output, and softmax statistics in fp32. An all-to-all for CP keeps the output twice.
    `copied`: the next projection saves a copy in 8 bits."""
    up = ("mla_up_proj",) if attention.latent else ()
    outputs = 2 * attention.heads * attention.value_dim
    keys = 2 * attention.kv_heads * (attention.key_dim + attention.value_dim)
    yield _Item(spread="split", bytes=2 * attention.heads * attention.key_dim, dropped_by=up)
    yield _Item(spread="groups", bytes=keys, dropped_by=up)
    yield _Item(spread="split", bytes=outputs * (2 if context_a2a else 1))
    yield _Item(spread="split", bytes=4 * attention.heads, dropped_by=("core_attn",))
    if copied:
        yield _Item(spread="split", bytes=outputs / 2, weight_only=True)


def _activation_items(activation: Activation, saved: float) -> Iterator[_Item]:
    """Yield the input, and the output, which the down-projection needs for the gradient of its weight."""
    modules = {"mlp": ("mlp",), "shared_experts": ("shared_experts", "moe"), "moe": ("moe",)}[activation.module]
    recomputed_output = (*modules, "moe_act") if activation.module == "moe" else modules
    spread: Spread = "routed" if activation.module == "moe" else "split"
    yield _Item(spread=spread, bytes=2 * activation.width * (2 if activation.gated else 1), dropped_by=modules)
    yield _Item(spread=spread, bytes=saved * activation.width, dropped_by=recomputed_output, weight_only=True)


def _sum(items: Iterator[_Item]) -> SavedBytes:
    sums: dict[str, float] = {}
    for item in items:
        sums[item.spread] = sums.get(item.spread, 0.0) + item.bytes
    return SavedBytes(**sums)


class EagerForm(NamedTuple):
    """How Hugging Face's modules run: the bytes of an element, and what is trained."""

    element: int = 2
    """Bytes of an element that projections read and write."""
    residual: int = 2
    """Bytes of an element of the residual stream: 4 if autocast runs over fp32 weights."""
    trained: bool = True
    """Whether norms and projections themselves are trained."""
    adapters: bool = False
    """Whether every projection has a LoRA adapter, which keeps its own copy of its input."""
    casts: bool = False
    """Whether each projection makes its own low-precision copy of the norm's output. With fp32 weights under autocast
    the norm's output is fp32, and adapters are fp32."""
    drops: bool = False
    """Whether each adapter reads its input through a dropout, which makes a copy and keeps a mask of bytes."""


@lru_cache(maxsize=1024)
def eager_bytes(kind: LayerKind, form: EagerForm) -> float:
    """Return the bytes per token that one layer of Hugging Face modules keeps."""
    return sum(_eager(operator, form) for operator in kind.operators)


def _eager(operator: Operator, form: EagerForm) -> float:
    e = form.element
    if isinstance(operator, Norm):
        return operator.width * _eager_norm(operator, form)
    if isinstance(operator, Linear):
        return _eager_linear(operator, form)
    if isinstance(operator, Attention):
        keys = 0 if operator.cross else operator.kv_heads * (operator.key_dim + operator.value_dim)
        queries = operator.heads * (operator.key_dim + operator.value_dim)
        # The whole output of a packed projection stays allocated because the value is its view. The tower then joins
        # the images' outputs into a copy, and keeps the rotary tables in fp32.
        packed = (3 * e * operator.heads + 8) * operator.key_dim if operator.packed else 0
        joined = e * (operator.heads + operator.kv_heads) * operator.key_dim if operator.joined else 0
        return e * (queries + keys) + packed + joined + 4 * operator.heads
    if isinstance(operator, Activation):
        return operator.width * _eager_activation(operator, form)
    if isinstance(operator, AltUp):
        return operator.width * _eager_altup(operator, form)
    if isinstance(operator, Streams):
        return operator.width * _eager_streams(operator, form) + _rounds_bytes(operator)
    if isinstance(operator, Dispatch):
        # The tokens that the experts read, and their outputs, which the routing weights multiply.
        read = form.trained or (form.adapters and operator.single)
        return e * operator.top_k * operator.hidden * (1 + read) + 12 * operator.experts
    if isinstance(operator, Recurrence):
        return _recurrence_bytes(operator) * e / 2
    if isinstance(operator, Mixing):
        return operator.saved_bytes * e / 2
    if isinstance(operator, Keep):
        if operator.weight_only and not form.trained:
            return 0.0
        if operator.is_residual:
            return operator.width * form.residual
        return operator.width * (e if operator.bytes == 2 else operator.bytes)
    return 0.0


def _eager_activation(activation: Activation, form: EagerForm) -> float:
    """Return the bytes per element of the width, with the input of the next projection, which a frozen one without an
    adapter does not need. Experts have adapters only if they are modules.

    SwiGLU saves the gate, its activation, and the other half. transformers 5.6 activations.py: NewGELUActivation saves
    its input, half of it, the tanh, and the tanh plus 1; XIELUActivation saves its input, its product with alpha_p (in
    fp32 if that weight is), the exponential, a mask of bytes, and what alpha_n multiplies if alpha_n is trained.
    """
    e = form.element
    has_adapters = form.adapters and (activation.module != "moe" or activation.single)
    output = e if form.trained or has_adapters else 0
    if activation.xielu:
        return e * (3 if form.trained else 2) + form.residual + 1 + output
    # The deviation needs its input, and the function reads what is left of it (Gemma3nTextMLP._gaussian_topk).
    output += e * activation.sparse
    # Clamps need their input, which is both halves. 5.6.0 modeling_gpt_oss.py _apply_gate also saves what is left of
    # the gate, its sigmoid, their product, and the other half plus 1. 5.19 modeling_step3p7.py Step3p7MLP saves what
    # the function returns, and what is left of that and of the other half. 5.19 modeling_deepseek_v4.py saves what is
    # left of both halves, and SiLU of the gate.
    if activation.clamped:
        return (5 if activation.clamps_output or activation.clamps_silu else 6) * e + output
    return e * (3 if activation.gated else 4 if activation.unfused else 1) + output


def _eager_altup(altup: AltUp, form: EagerForm) -> float:
    """Return the bytes per element of the hidden state, without those of the norms, which hold one copy each.

    transformers 5.6.0 modeling_gemma3n.py: a projected copy is squared, scaled and divided. A prediction reads all
    copies in the precision of products; norms in fp32 hold all copies, and all predictions, through views of them. A
    correction saves its innovation for every copy, the router's input, and what its own scale multiplies.
    """
    r, others = form.residual, altup.copies - 1
    if altup.step == "enter":
        return r * (1 + 2 * others)
    if altup.step == "leave":
        return r * (altup.copies + 2 * others)
    if altup.step == "correct":
        return r * altup.copies + (r + form.element if form.trained else 0)
    products = form.element * altup.copies if form.element < r or r < 4 else 0
    return products + (2 * r * others if r == 4 else 0)


def _eager_streams(streams: Streams, form: EagerForm) -> float:
    """Return the bytes per element of the hidden state.

    transformers 5.19 modeling_qwen4_exp.py: a mean keeps the gates and the normed streams, an addition keeps what it
    adds. N-grams keep the normed keys and streams and the values, which the gates multiply, and the input and output of
    the convolution.
    """
    e, r, n = form.element, form.residual, streams.copies
    if streams.step == "mix":
        return n * (e + r)
    if streams.step == "ngrams":
        return n * (3 * e + r) + e
    return e if streams.step == "add" else _eager_connection(streams, form)


def _eager_connection(streams: Streams, form: EagerForm) -> float:
    """Return the same of hyper-connections (transformers 5.19 modeling_deepseek_v4.py DeepseekV4HyperConnection and
    modeling_hy_v4.py HYV4HyperConnection).

    A mean keeps the streams, and their fp32 copy if they have 16 bits. The trained matrix of DeepSeek-V4 also keeps
    what it reads, the normed streams as autocast rounds them; HY 4 computes the product of the fp32 copy without
    autocast, and norms its result. An addition keeps what it adds, which HY 4 casts to fp32, and the rounded streams if
    a matrix mixes them. A plain mean keeps nothing.
    """
    e, r, n = form.element, form.residual, streams.copies
    if streams.step == "average":
        return 0
    if streams.step == "spread":
        return e + n * e * (r > e) if streams.rounds else 4
    return n * (r + 4 * (r < 4) + e * (form.trained and streams.norms_first))


def _rounds_bytes(streams: Streams) -> float:
    """Return the bytes per token of the steps that make the matrix of a hyper-connection doubly stochastic: in each two
    divisions in fp32, which keep what they divide, and by what (transformers 5.19 modeling_deepseek_v4.py)."""
    n = streams.copies
    return 4.0 * 2 * streams.rounds * n * (n + 1) if streams.step == "collapse" else 0.0


def _recurrence_bytes(operator: Recurrence) -> float:
    """Return the bytes per token that linear attention saves in 16 bits with the kernels of flash-linear-attention.

    The convolution saves its input. The chunked rule saves queries and keys (which transformers repeats for every value
    head), values, the step, and a triangular matrix of a chunk; and in fp32 the decay and the two norms
    (fla/ops/gated_delta_rule/chunk.py ChunkGatedDeltaRuleFunction.forward).

    Kimi's rule saves a second matrix of a chunk, and the decay of every channel as it came and summed
    (fla/ops/kda/chunk.py ChunkKDAFunction.forward @bc3b101dcb71). Before it transformers computes this decay in fp32:
    the exponential, its sum with 1, and the logarithm are saved, and a mask (5.19 modeling_kimi_linear.py
    KimiLinearForgetGate).
    """
    per_head = 2 * (2 * operator.key_dim + operator.value_dim + 1 + CHUNK) + 4 * 3
    if operator.decays_channels:
        per_head += 2 * CHUNK - 4 + (4 * 2 + 4 * 3 + 1) * operator.key_dim
    return float(2 * operator.channels + operator.value_heads * per_head)


def _eager_norm(norm: Norm, form: EagerForm) -> float:
    """Return the bytes per element. RMSNorm keeps its fp32 input, and the normalised input if its weight is trained.

    CohereLayerNorm keeps the centred fp32 input twice: for the square, and for the product (transformers 5.6
    modeling_cohere.py).
    """
    if norm.layer_norm:
        return form.residual
    if norm.centred:
        return 8 + (4 if form.trained else 0)
    normalised = 4 if norm.in_fp32 else form.element if norm.heads else form.residual
    return 4 + (normalised if form.trained else 0)


def _eager_linear(linear: Linear, form: EagerForm) -> float:
    if linear.share == "expert" or linear.untrained:
        return 0.0
    adapters = form.adapters and (linear.name not in NOT_ADAPTED or bool(linear.modules))
    if linear.name == "cross_kv":
        # Both projections read the vectors of the images, which are there once for all layers.
        copied = form.element if form.casts or form.drops else 0
        return linear.parts * linear.inputs * (copied + form.drops) if adapters else 0.0
    if linear.after_norm:
        copies = linear.parts if form.casts or form.drops else 0 if linear.beside else 1
        masks = linear.inputs * linear.parts if form.drops else 0.0
        return form.element * linear.inputs * copies + masks if form.trained or adapters else 0.0
    # The output projection reads the output of attention, which is counted with attention; an adapter copies it.
    copied = form.drops or (form.adapters and linear.name in ("o", "out_proj"))
    return (form.element * linear.inputs if copied else 0.0) + (linear.inputs if form.drops else 0.0)
