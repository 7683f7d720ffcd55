"""Seconds of the attention core, by the kernel that computes it."""

from backend.estimate.array_ops import Number, choose, smaller
from backend.estimate.model.load import Load
from backend.estimate.time.kernels import LayerKernels
from backend.estimate.time.time_context import TimeContext

ATTENTION_BACKWARD = 2.5
"""Fused attention computes the scores again in the backward pass: five products instead of two."""

UNFUSED_KERNELS = 4
"""Kernels of unfused attention beyond the fused kernel: megatron-core's dot_product_attention.py has two products,
softmax, dropout and a copy of the context, and twice as many in the backward pass."""

UNFUSED_SCORES = (13, 26)
"""Bytes per entry of the score matrix in unfused attention, forward and backward: product 2, softmax 4, dropout 5,
product 2."""
EAGER_SCORES = (24, 28)
"""The same in transformers' eager attention (5.6.0 modeling_llama.py eager_attention_forward): product 2, scaling 4,
mask 4, softmax in fp32 6, cast 6, product 2. Backward reads the fp32 output of the softmax, and casts and scales
again."""

MATH_SCORES, MATH_RETURNED, MATH_COPIED, MATH_KERNELS = (28, 28), 6, (32, 41), 10
"""Work of the math kernel of torch's SDPA: bytes per entry of the score matrix, forward and backward; those of the
scores that it returns in 16 bits; bytes per element of queries and outputs, for copies in fp32 and for keys that it
repeats; and kernels as in UNFUSED_KERNELS. Each operation of torch 2.13 on CPU was counted, with 16 bits and fp32: the
product 4, the causal mask 12, the softmax 8, and the second product 4."""


def attention_seconds(layer: LayerKernels, time_context: TimeContext, load: Load) -> tuple[Number, Number]:
    """Return the forward and backward seconds of the attention core."""
    if layer.stores_scores or time_context.plan.attention == "scores":
        return _stored_scores(layer, time_context, load)
    flops = load.tokens * layer.attention / load.tensor / _attention_speed(layer, time_context)
    forward_s = _keys_seen(layer, time_context, load) * flops
    backward_s = ATTENTION_BACKWARD * forward_s
    if time_context.plan.attention != "math" or not layer.shares_keys:
        return forward_s, backward_s
    # With a mask the keys are repeated, and the kernel is another.
    masked, math, math_back = time_context.run.masked, *_math_kernel(layer, time_context, load)
    square_s = load.length * flops * masked
    return (1 - masked) * math + square_s, (1 - masked) * math_back + ATTENTION_BACKWARD * square_s


def _keys_seen(layer: LayerKernels, time_context: TimeContext, load: Load) -> Number:
    """Return the keys with which a fused kernel computes the product of a mean query.

    A causal kernel computes half of the square, or the window. With a mask torch's SDPA computes the whole square:
    neither the memory-efficient kernel nor cuDNN's knows which of its pairs are masked. transformers makes a mask for a
    window that is no longer than the sequence (masking_utils.py sdpa_mask).

    A masked kernel counts at FlashAttention 2's speed, which is too fast: its backward pass with a mask reached 80
    TFLOP/s in NVIDIA/cutlass pull request 992, whose GPU is not named. For torch's build no published figure is known.
    """
    if not layer.causal:
        return smaller(load.length, layer.window) if layer.window else load.length
    if layer.fused or time_context.plan.attention not in ("sdpa", "math"):
        return smaller(0.5 * load.length, layer.window) if layer.window else 0.5 * load.length
    if layer.masked:
        return load.length
    seen = 0.5 * load.length * (1 + time_context.run.masked)
    return choose(load.length >= layer.window, load.length, seen) if layer.window else seen


def _stored_scores(layer: LayerKernels, time_context: TimeContext, load: Load) -> tuple[Number, Number]:
    """Return the same of attention that stores its scores. It computes all of them, but those of the windows of a tower
    alone."""
    length = smaller(load.length, layer.window) if layer.window and not layer.causal else load.length
    flops = load.tokens * length * layer.attention / load.tensor
    entries = load.tokens * length * layer.scores / load.tensor
    products, entry_s = flops / time_context.gemm_speed, entries / time_context.machine.memory
    moved, moved_back = UNFUSED_SCORES if layer.fused else EAGER_SCORES
    return products + moved * entry_s, 2 * products + moved_back * entry_s


def more_kernels(layer: LayerKernels, time_context: TimeContext) -> int:
    """Return the kernels of attention beyond one."""
    kind = time_context.plan.attention
    if layer.stores_scores or kind == "scores":
        return UNFUSED_KERNELS
    return MATH_KERNELS if kind == "math" and layer.shares_keys else 0


def _math_kernel(layer: LayerKernels, time_context: TimeContext, load: Load) -> tuple[Number, Number]:
    """Return the forward and backward seconds of the math kernel of torch's SDPA, which computes all scores in fp32."""
    machine, run = time_context.machine, time_context.run
    pairs = load.tokens * load.length / load.tensor
    products = pairs * layer.attention / time_context.single_speed
    copied = load.tokens * layer.queries / load.tensor / machine.memory
    moved = MATH_SCORES[0] + (MATH_RETURNED if run.element_bytes < 4 else 0)
    entry_s = pairs * layer.scores / machine.memory
    return (
        products + moved * entry_s + MATH_COPIED[0] * copied,
        2 * products + MATH_SCORES[1] * entry_s + MATH_COPIED[1] * copied,
    )


def _attention_speed(layer: LayerKernels, time_context: TimeContext) -> float:
    """Return the FLOP/s of the attention kernel. A tower beside Transformer Engine's modules has its own."""
    run = time_context.run
    kind = time_context.plan.attention if layer.fused == run.fused else "fused"
    if kind == "flash_3":
        return time_context.newest_attention_speed
    is_cudnn = kind == "cudnn" or (kind == "fused" and layer.fused and not run.compiled)
    return time_context.attention_speed if is_cudnn else time_context.flash_attention_speed
