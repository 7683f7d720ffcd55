"""What cross-attention to images keeps for the backward pass under Hugging Face engines, beside the layer's tokens."""

from backend.estimate.array_ops import Number
from backend.estimate.memory.eager_activations import EagerForm, eager_bytes
from backend.estimate.model.layers import LayerKind, ModelLayers
from backend.estimate.plan import Plan


def cross_attention_bytes(keys: LayerKind, plan: Plan, form: EagerForm) -> Number:
    """Return the bytes of one layer: keys and values of the vectors of the images, and its copy of the mask.

    SDPA saves a mask of its own: autocast casts one in fp32, and the fused kernel with a mask pads the last edge to
    whole units (aten/src/ATen/native/transformers/attention.cpp preprocess_mask).
    """
    return plan.images * plan.image_keys * eager_bytes(keys, form) + _mask(plan, form.element)


def image_vector_bytes(layers: ModelLayers, plan: Plan, form: EagerForm) -> Number:
    """Return the bytes that all layers with cross-attention share: the vectors of the images, and the mask that says
    which token sees which of them, in the precision of the tower."""
    vectors = form.element * plan.images * plan.image_keys * layers.output.hidden
    return vectors + _mask(plan, form.residual)


def _mask(plan: Plan, element: int) -> Number:
    return element * plan.tokens * plan.cross_attention_length
