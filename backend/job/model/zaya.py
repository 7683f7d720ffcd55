"""Layers of ZAYA: attention after convolutions, and a router with several layers that may choose no expert.

Read from configuration_zaya.py and modeling_zaya.py of transformers 5.19.
"""

from dataclasses import replace

from backend.job.model.attention_shape import ConvolvedAttention
from backend.job.model.config import Config, refusal
from backend.job.model.shape import Experts, LayerShape

HYBRID, SLIDING = "hybrid", "hybrid_sliding"
_SCALES = 8
"""Scales and shifts of the residual stream and of what is added to it, after attention and after the experts."""


def zaya_types(_config: Config, layers: int) -> list[str]:
    """Return the layers' types of ZayaConfig."""
    return [HYBRID] * layers


def zaya_mixer(config: Config, name: str) -> ConvolvedAttention:
    """Return the attention of a layer."""
    if name not in (HYBRID, SLIDING):
        raise refusal("unsupported_model_key", key="layer_types", value=name)
    return ConvolvedAttention(
        heads=config.size("num_attention_heads"),
        kv_heads=config.size("num_key_value_heads"),
        head_dim=config.size("head_dim"),
        channel_tokens=config.size("cca_time0"),
        head_tokens=config.size("cca_time1"),
        window=config.size("sliding_window") if name == SLIDING else 0,
        bias=config.flag("attention_bias"),
    )


def zaya_layer(config: Config, layer: LayerShape, index: int, _layers: int) -> LayerShape:
    """Return a layer with its router. All routers but the first read the one before, with a scale."""
    if not isinstance(layer.ffn, Experts):
        raise refusal("missing_model_key", key="num_experts")
    rank, hidden = config.size("router_hidden_size"), config.size("hidden_size")
    other = _SCALES * hidden + (rank if index else 0)
    return replace(layer, ffn=replace(layer.ffn, router_rank=rank), other=other, scales_residual=True)


def zaya_other(_config: Config, hidden: int, _layers: int) -> int:
    """Return the scale and the shift of the embedding."""
    return 2 * hidden
