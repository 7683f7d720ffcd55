"""Layers of Ling and Ring (`bailing_moe`, `bailing_hybrid`), whose versions share a model_type."""

from dataclasses import replace

from backend.job.model.attention_shape import FullAttention, Mla
from backend.job.model.config import Config
from backend.job.model.family import FULL, LINEAR
from backend.job.model.linear_shape import GatedDeltaNet, LightningAttention, kimi_delta
from backend.job.model.shape import Experts, LayerShape

MTP_KEY = "num_nextn_predict_layers"
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


def _is_third(config: Config) -> bool:
    """Return whether a hybrid model is of version 3: only that has convolutions."""
    return config.get("short_conv_kernel_size") is not None


def hybrid_types(config: Config, layers: int) -> list[str]:
    """modeling_bailing_moe_v2_5.py BailingMoeV2_5DecoderLayer: the last layer of a group has full attention, and so do
    the layers after the last whole group."""
    group = config.size("layer_group_size")
    whole = layers // group * group
    return [FULL if (index + 1) % group == 0 or index >= whole else LINEAR for index in range(layers)]


def hybrid_mixer(config: Config, name: str) -> GatedDeltaNet | LightningAttention | None:
    """Return the linear attention of either version. Full attention is latent in both."""
    if name != LINEAR:
        config.size("kv_lora_rank")
        return None
    heads, head_dim = config.size("num_attention_heads"), config.size("head_dim")
    if _is_third(config):
        return kimi_delta(heads, head_dim, config.size("short_conv_kernel_size"))
    key_heads = config.size("num_key_value_heads", default=heads)
    normed = config.flag("use_qk_norm", True)
    return LightningAttention(heads=heads, head_dim=head_dim, key_heads=key_heads, normed=normed)


def hybrid_layer(config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """Return a layer of its version: in 3 latent attention has a gate, and in 2.5 modules have names of their own and
    each expert is a module."""
    attention, ffn = layer.attention, layer.ffn
    if _is_third(config):
        return replace(layer, attention=replace(attention, gate="heads") if isinstance(attention, Mla) else attention)
    if isinstance(ffn, Experts):
        ffn = replace(ffn, single=True)
    return replace(layer, ffn=ffn, modules=(("qkv", ("query_key_value",)), ("o", ("dense",))))


def hybrid_mtp(config: Config) -> int:
    """Return the layers for multi-token prediction. transformers' class for version 3 has none."""
    return 0 if _is_third(config) else config.size(MTP_KEY, default=0)
