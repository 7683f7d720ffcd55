"""Seconds of one micro-batch through a layer with cross-attention to images."""

from dataclasses import replace

from backend.estimate.array_ops import choose
from backend.estimate.memory.stage import Trained
from backend.estimate.model.layers import LayerKind
from backend.estimate.model.load import Load
from backend.estimate.time.layer_time import layer_passes
from backend.estimate.time.passes import Passes
from backend.estimate.time.time_context import TimeContext


def cross_attention_passes(
    kind: LayerKind,
    keys: LayerKind,
    time_context: TimeContext,
    load: Load,
    trained: Trained,
    *,
    weights_trained: bool,
    inputs_need: bool,
    adapted: bool,
) -> Passes:
    """Return the passes through the layer: every token attends to the vectors of the images, from which `keys`
    computes keys and values."""
    plan = time_context.plan
    tokens = layer_passes(
        kind,
        time_context,
        replace(load, length=plan.cross_attention_length),
        weights_trained=weights_trained,
        inputs_need=inputs_need,
        adapted=adapted,
    )
    vectors = layer_passes(
        keys,
        time_context,
        replace(load, tokens=plan.images * plan.image_keys, length=plan.image_keys),
        weights_trained=weights_trained,
        inputs_need=trained.tower or trained.merger,
        adapted=adapted,
        recomputable=False,
        repeated=True,
    )
    # Keys and values are inside the layer, so a recomputation that stops early computes them too.
    again = vectors.forward.times(choose(plan.full_recompute, 1.0, 0.0))
    return Passes(
        tokens.forward.plus(vectors.forward),
        tokens.backward.plus(vectors.backward),
        tokens.recomputed.plus(again),
    )
