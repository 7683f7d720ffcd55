"""Seconds of a layer's matrix products on one rank."""

from backend.estimate.array_ops import Number
from backend.estimate.model.adapters import NF4_BYTES
from backend.estimate.model.load import Load
from backend.estimate.time.kernels import Operations
from backend.estimate.time.time_context import Setting

TILE_ROWS = 128
"""Rows of a matrix product that are computed together: those of cuBLAS's and CUTLASS's large tiles."""

UNPACKING = 3
"""Kernels that unpack a 4-bit weight: its scales are unpacked, shifted, used (bitsandbytes functional.py
dequantize_4bit, with double quantisation)."""


def product_seconds(done: Operations, setting: Setting, load: Load) -> tuple[Number, Number]:
    """Seconds of all projections once over, and of their weights' gradients.

    Arithmetic runs beside the operands' way through memory and does not quite hide it: the root of the sum of squares
    lies between the longer of both and their sum. A weight's gradient is added to the accumulated one, which is read
    and written; so is the gradient itself where the sum is a kernel of its own.
    """
    element_s = setting.element_s
    work = done.products_split / load.tensor + done.products_whole * load.whole
    operands = done.operands_full + done.operands_split / load.tensor
    weights = done.weights_split / load.tensor + done.weights_whole
    if done.weights_expert:
        held = done.weights_expert / (load.expert * load.expert_tensor)
        weights = weights + held
        # Each expert's rows fill whole tiles.
        work = work + done.products_expert * load.whole + TILE_ROWS / 2 * held / load.tokens
        operands = operands + done.operands_expert * load.whole
    arithmetic = 2 * load.tokens * work / setting.product_speed
    moved = element_s * load.tokens * operands
    accumulated_s = 2 * setting.run.memory.gradient_bytes / setting.machine.memory
    if setting.run.sums_apart:
        accumulated_s = accumulated_s + 2 * element_s
    once = _beside(arithmetic, moved + element_s * weights)
    if setting.run.unpacked:
        once = once + _unpacked(done, setting, load)
    return once, _beside(arithmetic, moved + accumulated_s * weights)


def _beside(arithmetic: Number, moved: Number) -> Number:
    return (arithmetic * arithmetic + moved * moved) ** 0.5


def _unpacked(done: Operations, setting: Setting, load: Load) -> Number:
    """Seconds to make 16-bit weights of 4-bit ones before each product with them.

    bitsandbytes' autograd/_functions.py MatMul4Bit: in forward (for more rows than its own product is good for) and for
    the gradient of the input; nothing is kept between them.
    """
    elements = done.packed_split / load.tensor + done.packed_whole
    return (NF4_BYTES + setting.run.element_bytes) * elements / setting.machine.memory
