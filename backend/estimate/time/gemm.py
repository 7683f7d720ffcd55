"""Seconds of the matrix products (GEMM) of a layer on one rank."""

from backend.estimate.array_ops import Number
from backend.estimate.model.adapters import NF4_BYTES
from backend.estimate.model.load import Load
from backend.estimate.time.kernels import LayerKernels
from backend.estimate.time.time_context import TimeContext

TILE_ROWS = 128
"""Rows of a matrix product that are computed together, in the large tiles of cuBLAS and CUTLASS."""

UNPACKING = 3
"""Kernels that unpack a 4-bit weight: they unpack its scales, shift them, and apply them (bitsandbytes functional.py
dequantize_4bit, with double quantisation)."""


def gemm_seconds(layer: LayerKernels, time_context: TimeContext, load: Load) -> tuple[Number, Number]:
    """Return the seconds of all projections, and of the gradients of their weights.

    Arithmetic and memory traffic overlap in part: t = sqrt(t_arithmetic^2 + t_memory^2). The gradient of a weight is
    added to the accumulated gradient.
    """
    element_s = time_context.element_s
    work = layer.gemm_split / load.tensor + layer.gemm_whole * load.whole
    operands = layer.operands_full + layer.operands_split / load.tensor
    weights = layer.weights_split / load.tensor + layer.weights_whole
    if layer.weights_expert:
        expert_weights = layer.weights_expert / (load.expert * load.expert_tensor)
        weights = weights + expert_weights
        # The rows of each expert are rounded up to whole tiles.
        work = work + layer.gemm_expert * load.whole + TILE_ROWS / 2 * expert_weights / load.tokens
        operands = operands + layer.operands_expert * load.whole
    arithmetic = 2.0 * load.tokens * work / time_context.gemm_speed
    moved = element_s * load.tokens * operands
    square = arithmetic * arithmetic
    moved_once, moved_sums = moved + element_s * weights, moved + time_context.accumulated_s * weights
    once = (square + moved_once * moved_once) ** 0.5
    if time_context.run.unpacked:
        once = once + _unpacked(layer, time_context, load)
    return once, (square + moved_sums * moved_sums) ** 0.5


def _unpacked(layer: LayerKernels, time_context: TimeContext, load: Load) -> Number:
    """Return the seconds to unpack 4-bit weights to 16 bits before each product with them.

    bitsandbytes' autograd/_functions.py MatMul4Bit does this in the forward pass (for more rows than its own product
    supports well) and again for the gradient of the input. It keeps nothing between them.
    """
    elements = layer.packed_split / load.tensor + layer.packed_whole
    return (NF4_BYTES + time_context.run.element_bytes) * elements / time_context.machine.memory
