"""Layers of Ling and Ring (`bailing_moe`), whose versions share a model_type."""

from dataclasses import replace

from backend.job.model.config import Config
from backend.job.model.shape import Experts, FullAttention, LayerShape

HEAD_DIM = 128
"""Of version 2, if config.json does not give it (inclusionAI/Ling-V2 models/configuration_bailing_moe_v2.py)."""


def ling_layer(config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """Return a layer of version 1 as it is. Only version 2 has groups of experts; its router has a bias of each expert,
    and its queries and keys have norms unless config.json says otherwise."""
    if config.get("n_group") is None:
        return layer
    attention, ffn = layer.attention, layer.ffn
    if isinstance(attention, FullAttention):
        attention = replace(
            attention,
            head_dim=config.size("head_dim", default=HEAD_DIM),
            qk_norm="heads" if config.flag("use_qk_norm", True) else "none",
        )
    if isinstance(ffn, Experts):
        ffn = replace(ffn, router_bias=True)
    return replace(layer, attention=attention, ffn=ffn)
