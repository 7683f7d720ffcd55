"""Bytes per token that one layer of Hugging Face's modules keeps for its backward pass, from its operators.

saved_activations.py has those of Transformer Engine's modules.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from backend.estimate.model.adapters import adapted_linears
from backend.estimate.model.layers import LayerKind
from backend.job.model.operators import (
    CHUNK,
    Activation,
    AltUp,
    Attention,
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


class EagerForm(NamedTuple):
    """How Hugging Face's modules run: the bytes of an element, and what is trained."""

    element: int = 2
    """Bytes of an element that projections read and write."""
    residual: int = 2
    """Bytes of an element of the residual stream: 4 if autocast runs over fp32 weights."""
    trained: bool = True
    """Whether norms and projections themselves are trained."""
    adapters: bool = False
    """Whether projections have LoRA adapters, each of which keeps its own copy of its input."""
    targets: str = "all"
    """The modules that have them, by Hugging Face's names."""
    casts: bool = False
    """Whether each projection makes its own low-precision copy of the norm's output. With fp32 weights under autocast
    the norm's output is fp32, and adapters are fp32."""
    drops: bool = False
    """Whether each adapter reads its input through a dropout, which makes a copy and keeps a mask of bytes."""
    fused_norms: bool = False
    """Whether an RMSNorm is Liger's kernel, which saves its input as it came (Liger 0.8.2 ops/rms_norm.py)."""
    fused_head_norms: bool = False
    """The same of the norms of heads, such as of queries and keys."""
    fused_functions: bool = False
    """Whether the gated function of a dense FFN and of shared experts is Liger's kernel (ops/swiglu.py,
    ops/geglu.py)."""


@lru_cache(maxsize=1024)
def eager_bytes(kind: LayerKind, form: EagerForm) -> float:
    """Return the bytes per token that one layer of Hugging Face modules keeps."""
    size = 0.0
    for operator, after in operators_in_pairs(kind):
        if isinstance(operator, Linear):
            size += _eager_linear(operator, form, _adapted_parts(operator, kind, form))
        elif isinstance(operator, Activation):
            size += operator.width * _eager_activation(operator, form, is_read=is_read(after, kind, form))
        else:
            size += _eager(operator, form)
    return size


def operators_in_pairs(kind: LayerKind) -> Iterable[tuple[Operator, Operator | None]]:
    """Return every operator of a layer, and the one after it."""
    return zip_longest(kind.operators, kind.operators[1:])


def is_read(after: Operator | None, kind: LayerKind, form: EagerForm) -> bool:
    """Return whether the gradient of a weight or of an adapter needs the input of a projection."""
    return form.trained or (isinstance(after, Linear) and _adapted_parts(after, kind, form) > 0)


def _adapted_parts(linear: Linear, kind: LayerKind, form: EagerForm) -> int:
    """Return the number of modules with adapters that a projection joins."""
    if not form.adapters:
        return 0
    if form.targets != "all":
        return sum(each is linear for each, _ in adapted_linears(kind, form.targets))
    return linear.parts if linear.name not in NOT_ADAPTED or linear.modules else 0


def _eager(operator: Operator, form: EagerForm) -> float:
    e = form.element
    if isinstance(operator, Norm):
        return operator.width * _eager_norm(operator, form)
    if isinstance(operator, Attention):
        keys = 0 if operator.cross else operator.kv_heads * (operator.key_dim + operator.value_dim)
        queries = operator.heads * (operator.key_dim + operator.value_dim)
        # The whole output of a packed projection stays allocated because the value is its view. The tower then joins
        # the images' outputs into a copy, and keeps the rotary tables in fp32.
        packed = (3 * e * operator.heads + 8) * operator.key_dim if operator.packed else 0
        joined = e * (operator.heads + operator.kv_heads) * operator.key_dim if operator.joined else 0
        return e * (queries + keys) + packed + joined + 4 * operator.heads
    if isinstance(operator, AltUp):
        return operator.width * altup_bytes(operator, form)
    if isinstance(operator, Streams):
        return operator.width * _eager_streams(operator, form) + _rounds_bytes(operator)
    if isinstance(operator, Dispatch):
        # The tokens that the experts read, and their outputs, which the routing weights multiply.
        read = form.trained or (form.adapters and operator.single)
        return e * operator.top_k * operator.hidden * (1 + read) + 12 * operator.experts
    if isinstance(operator, Recurrence):
        return recurrence_bytes(operator) * e / 2
    if isinstance(operator, Mixing):
        return operator.saved_bytes * e / 2
    if isinstance(operator, Keep):
        if operator.weight_only and not form.trained:
            return 0.0
        if operator.is_residual:
            return operator.width * form.residual
        return operator.width * (e if operator.bytes == 2 else operator.bytes)
    return 0.0


def _eager_activation(activation: Activation, form: EagerForm, *, is_read: bool) -> float:
    """Return the bytes per element of the width, with the input of the next projection, which a frozen one without an
    adapter does not need (`is_read`). Experts have adapters only if they are modules. An adapter with a dropout needs
    what the dropout returns.

    SwiGLU saves the gate, its activation, and the other half; Liger's saves the gate and the other half. transformers
    5.6 activations.py: NewGELUActivation saves its input, half of it, the tanh, and the tanh plus 1; XIELUActivation
    saves its input, its product with alpha_p (in fp32 if that weight is), the exponential, a mask of bytes, and what
    alpha_n multiplies if alpha_n is trained.
    """
    e = form.element
    has_adapters = (activation.module != "moe" or activation.single) and not form.drops
    output = e if is_read and (form.trained or has_adapters) else 0
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
    if activation.gated:
        return e * (2 if has_fused_function(activation, form) else 3) + output
    return e * (4 if activation.unfused else 1) + output


def has_fused_function(activation: Activation, form: EagerForm) -> bool:
    """Return whether Liger's kernel computes a gated function. Routed experts have another kernel."""
    return form.fused_functions and activation.gated and activation.module != "moe"


def altup_bytes(altup: AltUp, form: EagerForm) -> float:
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


def recurrence_bytes(operator: Recurrence) -> float:
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
    Liger's keeps its input alone.

    CohereLayerNorm keeps the centred fp32 input twice: for the square, and for the product (transformers 5.6
    modeling_cohere.py).
    """
    if norm.layer_norm:
        return form.residual
    if form.fused_head_norms if norm.heads else form.fused_norms:
        return form.element if norm.heads else form.residual
    if norm.centred:
        return 8 + (4 if form.trained else 0)
    normalised = 4 if norm.in_fp32 else form.element if norm.heads else form.residual
    return 4 + (normalised if form.trained else 0)


def _eager_linear(linear: Linear, form: EagerForm, adapted: int) -> float:
    """Return the bytes of the inputs that a projection keeps beside what is counted elsewhere, if `adapted` of the
    modules that it joins have adapters."""
    if linear.share == "expert" or linear.untrained:
        return 0.0
    if linear.name == "cross_kv":
        # Both projections read the vectors of the images, which are there once for all layers.
        copied = form.element if form.casts or form.drops else 0
        return adapted * linear.inputs * (copied + form.drops)
    readers = linear.parts if form.trained else adapted
    masks = linear.inputs * adapted if form.drops else 0.0
    if linear.casts_input and readers and form.element < 4 and not form.casts:
        return 4 * linear.inputs
    if linear.after_norm:
        copies = readers if form.casts or form.drops else 0 if linear.beside else min(readers, 1)
        return form.element * linear.inputs * copies + masks
    # The output projection reads the output of attention, which is counted with attention; an fp32 adapter copies it.
    copied = adapted and (form.drops or (form.casts and linear.name in ("o", "out_proj")))
    return (form.element * linear.inputs if copied else 0.0) + masks
