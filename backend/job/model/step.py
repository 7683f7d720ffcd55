"""Layers of Step 3.7: windows with more heads, a gate of each head, and an FFN whose function's output is clipped.

Read from configuration_step3p7.py and modeling_step3p7.py of transformers 5.19.
"""

from dataclasses import replace

from backend.job.model.attention_shape import FullAttention
from backend.job.model.config import Config, part, refusal
from backend.job.model.family import SLIDING
from backend.job.model.shape import Experts, Ffn, LayerShape


def step_layer(config: Config, layer: LayerShape, index: int, _layers: int) -> LayerShape:
    """Return a layer with the heads of its type. The clamps run in every layer, without a bound in most."""
    if not isinstance(layer.attention, FullAttention):
        raise refusal("unsupported_model_key", key="layer_types", value=type(layer.attention).__name__)
    attention, ffn = layer.attention, layer.ffn
    types = config.get("layer_types")
    if types and types[index] == SLIDING:
        attention = replace(attention, heads=_sliding_heads(config, attention.heads))
    if isinstance(ffn, Ffn):
        ffn = replace(ffn, clamped=True, clamps_output=True)
    elif isinstance(ffn, Experts):
        ffn = replace(ffn, clamped=True, shared_clamped=True, clamps_output=True)
    return replace(layer, attention=attention, ffn=ffn)


def _sliding_heads(config: Config, usual: int) -> int:
    other = Config(part(config.values, "attention_other_setting") or {})
    if config.get("num_sliding_attention_heads") is not None:
        return config.size("num_sliding_attention_heads")
    return other.size("num_attention_heads", default=usual)
