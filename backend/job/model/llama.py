"""What differs between the layers of Llama 4, by their place and their config.json, and its vision tower.

Read from modeling_llama4.py and configuration_llama4.py of transformers 5.6.
"""

from dataclasses import replace

from backend.job.model.attention_shape import FullAttention
from backend.job.model.config import Config, refusal
from backend.job.model.plain_towers import clip
from backend.job.model.shape import LayerShape
from backend.job.model.vision_shape import Projection, VisionShape

CHUNKED = "chunked_attention"


def llama4_layer_types(config: Config, layers: int) -> list[str]:
    """Return the types of layers that config.json does not list: attention within a chunk where positions rotate."""
    return [CHUNKED if _rotates(config, index) else "full_attention" for index in range(layers)]


def llama4_layer(config: Config, layer: LayerShape, index: int, _layers: int) -> LayerShape:
    """Return a layer: queries and keys are normalised, without weights, where positions rotate."""
    if not isinstance(layer.attention, FullAttention):
        raise refusal("unsupported_model_key", key="layer_types", value=type(layer.attention).__name__)
    is_normed = config.flag("use_qk_norm") and _rotates(config, index)
    return replace(layer, attention=replace(layer.attention, qk_norm="bare" if is_normed else "none"))


def _rotates(config: Config, index: int) -> bool:
    listed = config.indexes("no_rope_layers")
    if listed:
        return index < len(listed) and bool(listed[index])
    return (index + 1) % config.size("no_rope_layer_interval") != 0


def llama4_tower(vision: Config, _model: Config, text_hidden: int) -> VisionShape:
    """Return the tower. Its adapter, which joins patches before the projector, is frozen with it.

    The adapter's work is left out (1 % of the tower's). An image is one tile unless the processor cuts it.
    """
    ratio, middle = vision.get("pixel_shuffle_ratio"), vision.size("projector_output_dim")
    if not isinstance(ratio, float) or not 0 < ratio <= 1:
        raise refusal("bad_model_key", key="pixel_shuffle_ratio", value=ratio)
    return clip(
        vision,
        merge=round(1 / ratio),
        other=vision.size("intermediate_size") * vision.size("projector_input_dim") + middle**2,
        projector=(Projection(vision.size("vision_output_dim"), text_hidden),),
    )
