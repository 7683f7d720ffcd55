"""Families that transformers 5.6 does not have and a later release does, up to the one of requirements/newer.in.

`newer-python -m benchmarks.families --newer` compares the parameters of each with those that transformers builds.
"""

from collections.abc import Mapping
from dataclasses import replace

from backend.job.model.attention_shape import FullAttention
from backend.job.model.config import Config, refusal
from backend.job.model.family import FULL, SLIDING, Family, qwen_sliding
from backend.job.model.gemma import diffusion_layer, gemma4_layer, self_conditioning
from backend.job.model.kimi_linear import kimi_delta_net, kimi_types
from backend.job.model.minimax import minimax_layer, minimax_mixer, minimax_types
from backend.job.model.qwen4 import qwen4_layer, qwen4_types
from backend.job.model.shape import Experts, Ffn, LayerShape
from backend.job.model.sparse import (
    axk2_layer,
    compressed_layer,
    compressed_mixer,
    compressed_types,
    deepseek_layer,
    hy_layer,
    pooled_layer,
    pooled_types,
)
from backend.job.model.step import step_layer
from backend.job.model.zaya import zaya_layer, zaya_mixer, zaya_other, zaya_types


def _cohere_types(config: Config, layers: int) -> list[str]:
    """configuration_cohere2_moe.py: the leading dense layers have a pattern of their own."""
    dense = min(config.size("first_k_dense_replace", default=0), layers)
    first = _last_of_each(config.size("prefix_dense_sliding_window_pattern"), dense)
    return first + _last_of_each(config.size("sliding_window_pattern"), layers - dense)


def _last_of_each(period: int, layers: int) -> list[str]:
    return [SLIDING if (index + 1) % period else FULL for index in range(layers)]


def _gemma_types(_config: Config, layers: int) -> list[str]:
    """configuration_gemma4_unified.py: the last layer has full attention, too."""
    return [*_last_of_each(6, layers)[:-1], FULL]


def _first_of_four(_config: Config, layers: int) -> list[str]:
    """configuration_granite_swa.py."""
    return [SLIDING if index % 4 else FULL for index in range(layers)]


def _last_of_four(_config: Config, layers: int) -> list[str]:
    """configuration_muse_glimmer.py: counted backward from the last layer."""
    return [SLIDING if (layers - 1 - index) % 4 else FULL for index in range(layers)]


def _cohere_layer(config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """modeling_cohere2_moe.py: a config with rms_norm_eps has RMSNorms, and dense layers have a width of their own."""
    if config.get("rms_norm_eps") is not None:
        layer = replace(layer, norm="scale")
    if isinstance(layer.ffn, Ffn):
        layer = replace(layer, ffn=replace(layer.ffn, width=config.size("prefix_dense_intermediate_size")))
    return layer


def _hyperclova_layer(config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """modeling_hyperclovax.py."""
    return replace(layer, norms="both" if config.flag("use_post_norm") else "before")


def _laguna_layer(config: Config, layer: LayerShape, index: int, layers: int) -> LayerShape:
    """modeling_laguna.py: each layer has its own number of heads."""
    heads, gating = config.get("num_attention_heads_per_layer"), config.get("gating")
    if not isinstance(layer.attention, FullAttention):
        raise refusal("unsupported_model_key", key="layer_types", value=type(layer.attention).__name__)
    attention = replace(layer.attention, gate="own_of_head" if gating in (True, "per-head") else "own")
    if heads is not None:
        if (
            not isinstance(heads, list | tuple)
            or len(heads) != layers
            or not all(type(n) is int and n > 0 for n in heads)
        ):
            raise refusal("bad_model_key", key="num_attention_heads_per_layer", value=heads)
        attention = replace(attention, heads=heads[index])
    return replace(layer, attention=attention)


def _axk1_layer(_config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """modeling_axk1.py of 5.19 AXK1MoE: a norm follows the experts, but not a dense FFN."""
    return replace(layer, ffn_norm=isinstance(layer.ffn, Experts))


def _first_and_each_sixth(_config: Config, layers: int) -> list[str]:
    """configuration_mimo_v2_flash.py of 5.19."""
    return [FULL if index == 0 or (index + 1) % 6 == 0 else SLIDING for index in range(layers)]


def _mimo_layer(config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """modeling_mimo_v2_flash.py of 5.19: only layers with a sliding window have sinks, and they have twice as many key
    heads. Value heads have a width of their own."""
    config.size("sliding_window")
    if not isinstance(layer.attention, FullAttention):
        raise refusal("unsupported_model_key", key="layer_types", value=type(layer.attention).__name__)
    attention = replace(layer.attention, value_dim=config.size("v_head_dim"), rounds_softmax=True)
    if attention.window:
        attention = replace(attention, kv_heads=2 * attention.kv_heads, sinks="logit")
    return replace(layer, attention=attention)


_GRANITE_SWA = Family(sinks="scale", layer_types=_first_of_four)

NEWER: Mapping[str, Family] = {
    "axk1": Family(router_bias=True, fp32_routing=True, refine=_axk1_layer),
    "axk2": Family(router_bias=True, fp32_routing=True, leading_dense=1, refine=axk2_layer),
    "cohere2_moe": Family(
        keys={"moe_intermediate_size": "intermediate_size", "n_shared_experts": "num_shared_experts"},
        norms="shared",
        norm="centred_scale",
        layer_types=_cohere_types,
        refine=_cohere_layer,
    ),
    # Its class has full attention by default. Cohere 2, with the same layers, has sliding windows.
    "cohere_compass": Family(norms="shared", norm="centred_scale"),
    "deepseek_ocr2": Family(only_counted=True),
    "deepseek_v32": Family(router_bias=True, fp32_routing=True, refine=deepseek_layer),
    "deepseek_v4": Family(
        # The experts and the shared expert have the same width, which attribute_map calls intermediate_size, too.
        keys={"intermediate_size": "moe_intermediate_size"},
        only={"n_shared_experts": 1, "attention_bias": False, "mlp_bias": False},
        router_bias=True,
        # Its norms stay in fp32, and so what the FFN adds to the streams is in fp32 (_keep_in_fp32_modules_strict).
        fp32_residual=True,
        layer_types=compressed_types,
        mixer=compressed_mixer,
        refine=compressed_layer,
    ),
    "diffusion_gemma": Family(
        keys={"num_experts_per_tok": "top_k_experts"},
        fp32_norms=True,
        gated=True,
        norms="both",
        qk_norm="heads",
        only_counted=True,
        layer_types=_gemma_types,
        refine=diffusion_layer,
        other=self_conditioning,
    ),
    "gemma4_unified": Family(
        keys={"num_experts_per_tok": "top_k_experts"},
        fp32_norms=True,
        gated=True,
        norms="both",
        qk_norm="heads",
        layer_types=_gemma_types,
        refine=gemma4_layer,
    ),
    "glm5_next": Family(
        router_bias=True,
        fp32_routing=True,
        leading_dense=3,
        layer_types=pooled_types,
        delta_net=kimi_delta_net,
        refine=pooled_layer,
    ),
    "granite4_vision": Family(),
    "granite_swa": _GRANITE_SWA,
    "granitemoe_swa": replace(
        _GRANITE_SWA,
        keys={"shared_expert_intermediate_size": "shared_intermediate_size"},
        modules={"shared_up": ("input_linear",), "shared_down": ("output_linear",)},
    ),
    "hunyuan_vl": Family(
        aliases={"attention_head_dim": "head_dim", "org_vocab_size": "vocab_size"},
        qk_norm="heads",
    ),
    "hy_v4": Family(
        router_bias=True,
        fp32_routing=True,
        leading_dense=1,
        refine=hy_layer,
    ),
    "hyperclovax": Family(refine=_hyperclova_layer),
    "kimi_linear": Family(
        aliases={"num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts"},
        leading_dense=1,
        router_bias=True,
        fp32_routing=True,
        layer_types=kimi_types,
        delta_net=kimi_delta_net,
    ),
    "laguna": Family(
        modules={"gate_proj": ("g_proj",)},
        qk_norm="heads",
        leading_dense=1,
        router_bias=True,
        refine=_laguna_layer,
    ),
    "mellum": Family(qk_norm="heads", layer_types=qwen_sliding),
    "mimo_v2_flash": Family(
        output_bias=False,
        leading_dense=1,
        router_bias=True,
        fp32_routing=True,
        layer_types=_first_and_each_sixth,
        refine=_mimo_layer,
    ),
    "minimax_m3_vl": Family(
        keys={
            "intermediate_size": "dense_intermediate_size",
            "moe_intermediate_size": "intermediate_size",
            "shared_expert_intermediate_size": "shared_intermediate_size",
        },
        modules={"up": ("gate_up_proj",), "shared_up": ("gate_up_proj",)},
        fp32_norms=True,
        gated=True,
        qk_norm="heads",
        router_bias=True,
        fp32_routing=True,
        layer_types=minimax_types,
        mixer=minimax_mixer,
        refine=minimax_layer,
    ),
    "minicpm3": Family(value_heads_divide_hidden=True),
    "muse_glimmer": Family(
        fp32_norms=True,
        bare_embedding_norm=True,
        gated=True,
        norms="both",
        qk_norm="bare",
        gate="own",
        layer_types=_last_of_four,
    ),
    "qwen3_asr": Family(qk_norm="heads"),
    "qwen4_exp": Family(
        fp32_norms=True,
        qk_norm="heads",
        gate="query",
        shared_gate=True,
        joined=False,
        norms="none",
        layer_types=qwen4_types,
        refine=qwen4_layer,
    ),
    # The language part has the type step3p5. Models of that type alone have code of their own.
    "step3p7": Family(
        keys={
            "num_experts": "n_routed_experts",
            "num_local_experts": "n_routed_experts",
            "shared_expert_intermediate_size": "share_expert_dim",
        },
        aliases={
            "moe_layers_enum": "moe_layers",
            "moe_num_experts": "n_routed_experts",
            "num_local_experts": "n_routed_experts",
            "moe_top_k": "num_experts_per_tok",
            "num_attention_groups": "num_key_value_heads",
            "share_expert_dims": "share_expert_dim",
        },
        modules={"gate_proj": ("g_proj",)},
        fp32_norms=True,
        gated=True,
        qk_norm="heads",
        gate="own_of_head",
        leading_dense=3,
        router_bias=True,
        fp32_routing=True,
        refine=step_layer,
    ),
    "zaya": Family(
        only={"lm_head_bias": False, "num_experts_per_tok": 1},
        gated=True,
        fp32_residual=True,
        layer_types=zaya_types,
        mixer=zaya_mixer,
        refine=zaya_layer,
        other=zaya_other,
    ),
}
"""By model_type of the text model, without the suffix `_text`."""
NEWER_TOWERS: tuple[str, ...] = (
    "cohere_compass",
    "deepseek_ocr2",
    "diffusion_gemma",
    "exaone4_5",
    "gemma4_unified",
    "glm5_next",
    "glmga",
    "granite4_vision",
    "hunyuan_vl",
    "hyperclovax_vision_v2",
    "kimi_k25",
    "minicpmv4_6",
    "minicpmv4_7",
    "minimax_m3_vl",
    "muse_glimmer",
    "qwen3_asr",
    "qwen4_exp",
    "step3p7",
)
"""Types in vision.TOWERS that only a later transformers has."""
