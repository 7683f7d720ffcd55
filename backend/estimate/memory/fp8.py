"""The 8-bit copies that Transformer Engine keeps of the weights of a layer's linear modules.

Read in NVIDIA/TransformerEngine d0067d0 (transformer_engine/pytorch) and megatron-core 0.16.1:

- A module makes the copies at the first micro-batch and keeps them (module/linear.py: `_fp8_workspaces`, as
  extensions/transformer_engine.py passes `is_first_microbatch`). They stay allocated between steps.
- Forward reads rows of a weight, and the gradient of the input reads columns. Blockwise and MXFP8 scale both apart.
  Tensorwise and delayed scaling have one copy for both where the GPU multiplies FP8 matrices in any order (utils.py
  is_non_tn_fp8_gemm_supported), and a transposed copy elsewhere (tensor/storage/float8_tensor_storage.py).
- With `fp8_param` the copies are the weights. There are no 16-bit ones then.
- The norm's weights, the router, the embedding, the output layer and the vision tower stay in 16 bits.

Megatron-LM's CI ran one model with and without FP8: the copies of 2 bytes a weight that we compute are 657 MiB there
(tests/estimate/test_fp8_memory.py).
"""

from backend.estimate.array_ops import Number
from backend.estimate.memory.memory_term import Piece, piece
from backend.estimate.memory.stage import Stage
from backend.estimate.model.layers import LayerKind, operators_of
from backend.estimate.plan import Plan
from backend.job.job import Job
from backend.job.memory_traits import Fp8, MemoryTraits
from backend.job.model.operators import Linear
from backend.job.presets import Gpu

_IN_16_BITS = frozenset({"router", "shared_gate"})
"""Linear operators of a layer that are no modules of Transformer Engine."""

_INPUT_SCALES = {"mxfp8": 1 / 32, "blockwise": 4 / 128}
"""Bytes of the scales of an element of an input: a byte for 32 elements, or an fp32 scale for 128."""
_WEIGHT_SCALES = {"mxfp8": 1 / 32, "blockwise": 4 / 128**2}
"""The same of a weight, whose blocks have 128 x 128 elements."""


def fp8_of_job(job: Job, gpu: Gpu) -> Fp8 | None:
    """Return how a job keeps 8-bit copies; None if its products are in 16 bits.

    Without `fp8_recipe` the recipe is megatron-core's and ms-swift's default, delayed scaling.
    """
    if not job.has_fp8_products:
        return None
    recipe = str(job.extra.get("fp8_recipe") or "delayed")
    replaces = bool(job.extra.get("fp8_param") or job.extra.get("fp8_param_gather"))
    return fp8_of_recipe(recipe, replaces_weights=replaces, one_copy=gpu.any_order_fp8)


def fp8_of_recipe(recipe: str, *, replaces_weights: bool, one_copy: bool) -> Fp8:
    """Return how a recipe keeps 8-bit copies. `one_copy`: the GPU multiplies FP8 matrices in any order."""
    scaled_apart = recipe in _WEIGHT_SCALES
    rows = 1 + _WEIGHT_SCALES.get(recipe, 0)
    return Fp8(
        copies_bytes=rows * (2 if scaled_apart or not one_copy else 1),
        rows_bytes=rows,
        input_bytes=1 + _INPUT_SCALES.get(recipe, 0),
        replaces_weights=replaces_weights,
        copies_attention=recipe == "delayed",
    )


def fp8_pieces(plan: Plan, stage: Stage, memory: MemoryTraits, *, reference: bool) -> tuple[Piece, ...]:
    """Return the bytes of 8-bit copies on a rank of a stage, and those of the 16-bit weights that they replace, which
    are negative.

    DPO's reference model runs forward only, so that it has rows only, unless the copies are its weights.
    """
    fp8 = memory.fp8
    if fp8 is None:
        return ()
    weights: Number = 0.0
    for kind, count in stage.kinds:
        weights = weights + count * _fp8_weights(kind, plan)
    models = 2 if reference else 1
    if fp8.replaces_weights:
        each, replaced = models * fp8.copies_bytes, -models * memory.weight_bytes
    else:
        each, replaced = fp8.copies_bytes + (fp8.rows_bytes if reference else 0), 0.0
    copies = piece("weights_fp8", each * weights, bytes_each=each, elements=None)
    return (copies, piece("weights_replaced", replaced * weights, bytes_each=replaced, elements=None))


def _fp8_weights(kind: LayerKind, plan: Plan) -> Number:
    """Return the weights of one layer on a rank whose products are in FP8."""
    shares: dict[str, Number] = {"split": plan.tensor, "whole": 1, "expert": plan.expert * plan.expert_tensor}
    weights: Number = 0.0
    for linear in operators_of(kind, Linear):
        if linear.name not in _IN_16_BITS:
            weights = weights + linear.copies * linear.inputs * linear.outputs / shares[linear.share]
    return weights
