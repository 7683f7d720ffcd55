"""What differs between the model families of transformers: facts that config.json does not contain.

Each entry is read from src/transformers/models/<name>/modeling_<name>.py and configuration_<name>.py of transformers
5.6, and compared with the parameters that transformers builds (tests/estimate/test_families.py).
presets/config_defaults.json has the values that a config.json may omit (tools/config_defaults.py). own_code.py has the
families that transformers does not have.
"""

from collections.abc import Mapping
from dataclasses import replace

from backend.job.model import hybrids
from backend.job.model.config import Config
from backend.job.model.family import FULL, LINEAR, SLIDING, Family, LayerTypes, qwen_sliding
from backend.job.model.gemma import ernie_layer, gemma3n_layer, gemma3n_width, gemma4_layer, per_layer_table
from backend.job.model.llama import llama4_layer, llama4_layer_types
from backend.job.model.mllama import mllama_layer_types, mllama_other
from backend.job.model.newer import NEWER
from backend.job.model.own_code import OWN_CODE
from backend.job.model.sparse import glm_layer


def _all_sliding(config: Config, layers: int) -> list[str]:
    return [SLIDING if config.get("sliding_window") else FULL] * layers


def _full_each(key: str, usual: int, other: str) -> LayerTypes:
    """Return layer types in which every n-th layer has full attention; `key` may give n."""

    def types(config: Config, layers: int) -> list[str]:
        period = config.size(key, default=usual)
        return [other if (index + 1) % period else FULL for index in range(layers)]

    return types


def _alternating(_config: Config, layers: int) -> list[str]:
    return [SLIDING if index % 2 == 0 else FULL for index in range(layers)]


def _adjusted_width(config: Config) -> int:
    """modeling_lfm2.py Lfm2MLP."""
    width = config.size("intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim"):
        return width
    multiplier, multiple = config.get("block_ffn_dim_multiplier"), config.size("block_multiple_of")
    width = int(2 * width / 3)
    return width if multiplier is None else -(-int(multiplier * width) // multiple) * multiple


_NEOX_MODULES = {
    "qkv": ("query_key_value",),
    "o": ("dense",),
    "up": ("dense_h_to_4h",),
    "down": ("dense_4h_to_h",),
}
_FC_MODULES = {"o": ("dense",), "up": ("fc1",), "down": ("fc2",)}
_GRANITE_SHARED = {"router": ("layer",), "shared_up": ("input_linear",), "shared_down": ("output_linear",)}
"""ms-swift adapts the routers too. LLaMA-Factory's `all` is refused (backend/job/rules/adapters.py)."""
_GPT2 = Family(
    keys={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "hidden_act": "activation_function",
    },
    modules={"qkv": ("c_attn",), "o": ("c_proj",), "up": ("c_fc",), "down": ("c_proj",)},
    qkv_bias=True,
    output_bias=True,
    norm="scale_and_shift",
    gated=False,
    ffn_bias=True,
    ffn_ratio=4,
    positions="n_positions",
)
_GPTJ = replace(
    _GPT2,
    modules={"o": ("out_proj",), "up": ("fc_in",), "down": ("fc_out",)},
    qkv_bias=False,
    output_bias=False,
    norms="shared",
    positions="",
    head_bias=True,
)
_QWEN2 = Family(qkv_bias=True, output_bias=False, layer_types=qwen_sliding)
_QWEN3 = Family(qk_norm="heads", layer_types=qwen_sliding)
_QWEN3_NEXT = Family(
    fp32_norms=True,
    qk_norm="heads",
    gate="query",
    shared_gate=True,
    layer_types=_full_each("full_attention_interval", 4, LINEAR),
)
_GLM = Family(output_bias=False)
_GLM_PACKED = replace(_GLM, modules={"up": ("gate_up_proj",)})
_MISTRAL = Family(qkv_bias=False, output_bias=False, layer_types=_all_sliding)
_GEMMA = Family(fp32_norms=True, gated=True, norms="both", qk_norm="heads")
_COHERE = Family(norms="shared", norm="centred_scale")
_OLMO2 = Family(fp32_norms=True, qk_norm="whole", norms="after")

FAMILIES: Mapping[str, Family] = {
    **OWN_CODE,
    **NEWER,
    "afmoe": Family(
        fp32_norms=True,
        keys={"n_shared_experts": "num_shared_experts"},
        qk_norm="heads",
        gate="own",
        norms="both",
        layer_types=_full_each("global_attn_every_n_layers", 4, SLIDING),
        router_bias=True,
    ),
    "aria": Family(
        keys={
            "n_routed_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_topk",
            "n_shared_experts": "moe_num_shared_experts",
            "moe_intermediate_size": "intermediate_size",
        },
    ),
    "apertus": Family(qk_norm="heads", gated=False, activation_parameters=2),
    "arcee": Family(gated=False),
    "bamba": Family(layer_types=hybrids.listed_attention, state_space=hybrids.second),
    "bloom": replace(
        _GPT2,
        keys={},
        aliases={"n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"},
        modules=_NEOX_MODULES,
        positions="",
        embedding_norm=True,
        stores_scores=True,
    ),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, layer_types=_full_each("sliding_window_pattern", 4, SLIDING)),
    "codegen": replace(_GPTJ, modules={**_GPTJ.modules, "qkv": ("qkv_proj",)}),
    "cwm": Family(),
    "deepseek_v2": Family(),
    "deepseek_v3": Family(router_bias=True, fp32_routing=True),
    "dots1": Family(qk_norm="heads", router_bias=True, fp32_routing=True),
    "ernie4_5": Family(qkv_bias="use_bias", output_bias="use_bias", ffn_bias="use_bias"),
    "ernie4_5_moe": Family(
        keys={
            "n_routed_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_k",
            "n_shared_experts": "moe_num_shared_experts",
            "first_k_dense_replace": "moe_layer_start_index",
        },
        qkv_bias="use_bias",
        output_bias="use_bias",
        ffn_bias="use_bias",
        router_bias=True,
    ),
    "ernie4_5_vl_moe": Family(
        keys={
            "n_routed_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_k",
            "moe_intermediate_size": "intermediate_size",
        },
        qkv_bias="use_bias",
        output_bias="use_bias",
        ffn_bias="use_bias",
        router_bias=True,
        leading_dense=1,
        refine=ernie_layer,
    ),
    "exaone4": Family(qk_norm="heads", norms="after", layer_types=_full_each("sliding_window_pattern", 4, SLIDING)),
    "exaone_moe": Family(
        keys={"n_shared_experts": "num_shared_experts"},
        qk_norm="heads",
        layer_types=_full_each("sliding_window_pattern", 4, SLIDING),
        router_bias=True,
    ),
    "falcon": Family(
        keys={"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
        modules=_NEOX_MODULES,
        qkv_bias="bias",
        output_bias="bias",
        norms="shared",
        norm="scale_and_shift",
        gated=False,
        ffn_bias="bias",
        ffn_ratio=4,
    ),
    "falcon_h1": Family(layer_types=hybrids.all_hybrid, state_space=hybrids.beside_attention),
    "flex_olmo": replace(_OLMO2),
    "gemma": Family(fp32_norms=True, gated=True),
    "gemma2": Family(fp32_norms=True, gated=True, norms="both", layer_types=_alternating),
    "gemma3": replace(
        _GEMMA,
        layer_types=_full_each("sliding_window_pattern", 6, SLIDING),
    ),
    "gemma3n": replace(
        _GEMMA,
        layer_types=_full_each("sliding_window_pattern", 5, SLIDING),
        ffn_width=gemma3n_width,
        refine=gemma3n_layer,
        other=per_layer_table,
    ),
    "gemma4": replace(
        _GEMMA,
        keys={"num_experts_per_tok": "top_k_experts"},
        layer_types=_full_each("sliding_window_pattern", 6, SLIDING),
        refine=gemma4_layer,
        other=per_layer_table,
    ),
    "glm": _GLM_PACKED,
    "glm4": replace(_GLM_PACKED, norms="both"),
    "glm_ocr": replace(_GLM_PACKED, norms="both"),
    "glm4v": replace(_GLM_PACKED, qkv_bias=True, norms="both"),
    "glm4v_moe": replace(_GLM, router_bias=True, fp32_routing=True),
    "glm4_moe": replace(_GLM, router_bias=True, fp32_routing=True),
    "glm_moe_dsa": replace(
        _GLM,
        # Only later versions of transformers read this key.
        only={"first_k_dense_replace": 3},
        router_bias=True,
        fp32_routing=True,
        leading_dense=3,
        refine=glm_layer,
    ),
    "glm4_moe_lite": replace(_GLM, router_bias=True, fp32_routing=True, leading_dense=1),
    "gpt2": _GPT2,
    "gpt-sw3": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neox": Family(modules=_NEOX_MODULES, norm="scale_and_shift", gated=False, ffn_bias=True),
    "gpt_oss": Family(fp32_norms=True, sinks="logit", layer_types=_alternating, expert_bias=True, clamped=True),
    "gptj": _GPTJ,
    "granite": Family(),
    "granitemoe": Family(modules={"router": ("layer",)}),
    "granitemoehybrid": Family(
        keys={"shared_expert_intermediate_size": "shared_intermediate_size"},
        modules=_GRANITE_SHARED,
        layer_types=hybrids.all_mamba,
        state_space=hybrids.second,
    ),
    "granitemoeshared": Family(
        keys={"shared_expert_intermediate_size": "shared_intermediate_size"}, modules=_GRANITE_SHARED
    ),
    "helium": Family(fp32_norms=True),
    "hunyuan_v1_dense": Family(qk_norm="heads"),
    "hunyuan_v1_moe": Family(
        keys={"num_experts_per_tok": "moe_topk", "moe_intermediate_size": "intermediate_size"},
        modules={"router": ("wg",)},
        qk_norm="heads",
        ffn_is_shared=True,
    ),
    "hy_v3": Family(
        keys={"n_shared_experts": "num_shared_experts"}, qk_norm="heads", router_bias=True, leading_dense=1
    ),
    "jamba": Family(
        modules={"router": ("router",)},
        fp32_routing=True,
        layer_types=hybrids.periodic_attention,
        state_space=hybrids.first,
    ),
    "jais2": Family(norm="scale_and_shift", gated=False),
    "lfm2": Family(
        modules={"o": ("out_proj",), "up": ("w1", "w3"), "down": ("w2",)},
        qkv_bias=False,
        output_bias=False,
        qk_norm="heads",
        layer_types=hybrids.listed_full_attention,
        ffn_width=_adjusted_width,
    ),
    "lfm2_moe": Family(qkv_bias=False, output_bias=False, qk_norm="heads", layer_types=hybrids.listed_full_attention),
    "llama": Family(),
    "llama4": Family(
        keys={
            "intermediate_size": "intermediate_size_mlp",
            "moe_intermediate_size": "intermediate_size",
            "shared_expert_intermediate_size": "intermediate_size",
            "decoder_sparse_step": "interleave_moe_layer_step",
        },
        layer_types=llama4_layer_types,
        dense_experts=True,
        refine=llama4_layer,
    ),
    "minimax_m2": Family(qk_norm="whole", router_bias=True, fp32_routing=True),
    "ministral": _MISTRAL,
    "ministral3": _MISTRAL,
    "mistral": _MISTRAL,
    "mixtral": replace(_MISTRAL, fp32_routing=True),
    "mllama": Family(layer_types=mllama_layer_types, other=mllama_other, never_tied=True),
    "mpt": Family(
        keys={"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
        modules={"qkv": ("Wqkv",), "o": ("out_proj",)},
        gated=False,
        ffn_ratio=4,
    ),
    "nanochat": Family(norm="none", gated=False),
    "nemotron": Family(norm="scale_and_shift", gated=False),
    "nemotron_h": Family(
        keys={"moe_shared_width": "moe_shared_expert_intermediate_size"},
        gated=False,
        state_space=hybrids.nemotron,
        router_bias=True,
    ),
    "olmo": Family(norm="none"),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, layer_types=_full_each("sliding_window_pattern", 4, SLIDING)),
    "olmoe": Family(qk_norm="whole"),
    "opt": Family(
        keys={"intermediate_size": "ffn_dim", "hidden_dropout": "dropout"},
        modules={**_FC_MODULES, "o": ("out_proj",)},
        qkv_bias="enable_bias",
        output_bias="enable_bias",
        norm="scale_and_shift",
        gated=False,
        ffn_bias="enable_bias",
        positions="max_position_embeddings",
        extra_positions=2,
    ),
    "paddleocr_vl": Family(qkv_bias="use_bias", output_bias="use_bias", ffn_bias="use_bias"),
    "phi": Family(
        modules=_FC_MODULES,
        qkv_bias=True,
        output_bias=True,
        norms="shared",
        norm="scale_and_shift",
        gated=False,
        ffn_bias=True,
        head_bias=True,
    ),
    "phi3": Family(
        modules={"qkv": ("qkv_proj",), "up": ("gate_up_proj",)},
        qkv_bias=False,
        output_bias=False,
        layer_types=_all_sliding,
    ),
    "phimoe": Family(norm="scale_and_shift"),
    "qwen2": _QWEN2,
    "qwen2_5_omni": _QWEN2,
    "qwen2_moe": replace(_QWEN2, shared_gate=True),
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_omni_moe": _QWEN3,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": replace(_QWEN3_NEXT, joined=False),
    "qwen3_5_moe": replace(_QWEN3_NEXT, joined=False),
    "seed_oss": Family(output_bias="attention_out_bias"),
    "smollm3": Family(),
    "solar_open": Family(router_bias=True),
    "stablelm": Family(qkv_bias="use_qkv_bias", output_bias=False, norm="scale_and_shift"),
    "starcoder2": Family(
        modules={"up": ("c_fc",), "down": ("c_proj",)},
        qkv_bias="use_bias",
        output_bias="use_bias",
        norm="scale_and_shift",
        gated=False,
        ffn_bias="use_bias",
        layer_types=_all_sliding,
    ),
    "vaultgemma": Family(fp32_norms=True, gated=True, layer_types=_alternating),
    "youtu": Family(),
}
"""By model_type of the text model, without the suffix `_text`."""

FP32_ROUTERS = frozenset(
    {
        "axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "ernie4_5_vl_moe",
        "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm5_next", "glm_moe_dsa", "hy_v3", "hy_v4", "kimi_k2",
        "kimi_linear", "kimi_vl", "mimo_v2_flash", "nemotron_h", "solar_open",
    }
)  # fmt: skip
"""Types whose router casts its input to fp32 (transformers 5.6.0 and 5.19 modeling_*.py, and the model's own code,
`F.linear(hidden_states.type(torch.float32), self.weight.type(torch.float32))`)."""

DROPOUT_KEYS = ("residual_dropout", "resid_pdrop", "hidden_dropout")
"""Names of the share that training drops from what attention and FFN add to the residual stream."""

UNREAD = ("qk_layernorm", "moe_latent_size")
"""Switches that change a model and that no family here reads: a model that sets one is refused."""
