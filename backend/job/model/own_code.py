"""Families whose code is in the model's folder (trust_remote_code) and not in transformers 5.6.

Each entry names the copy of this code, or the other implementation, that it was read from. tests/job/test_own_code.py
compares the parameters with those of real models.
"""

from collections.abc import Mapping
from dataclasses import replace

from backend.job.model.config import Config
from backend.job.model.deepseek_v41 import draft_weights, shared_layer
from backend.job.model.family import FULL, SLIDING, Family, qwen_sliding
from backend.job.model.ling import MTP_KEY, hybrid_layer, hybrid_mixer, hybrid_mtp, hybrid_types, ling_layer
from backend.job.model.shape import LayerShape
from backend.job.model.sparse import compressed_mixer


def _half_width(config: Config) -> int:
    """modeling_qwen.py QWenMLP: `intermediate_size` is that of both projections together."""
    return config.size("intermediate_size") // 2


def _biased_down(config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """modeling_telechat.py TelechatMLP: only the last projection of the FFN has a bias."""
    return replace(layer, other=layer.other + config.size("hidden_size"))


def _predictors(config: Config) -> int:
    return config.size(MTP_KEY, default=0)


def _windows(_config: Config, layers: int) -> list[str]:
    """Every layer of DeepSeek-V4.1 has a window; what else it reads, its place tells."""
    return [SLIDING] * layers


def _windows_above(config: Config, layers: int) -> list[str]:
    """configuration_llavaonevision1_5.py: a sliding window needs no switch."""
    first = config.size("max_window_layers", default=0) if config.get("sliding_window") is not None else layers
    return [SLIDING if index >= first else FULL for index in range(layers)]


OWN_CODE: Mapping[str, Family] = {
    # Ling and Ring: inclusionAI/Ling models/modeling_bailing_moe.py @5ccaeae; of version 2 inclusionAI/Ling-V2
    # models/modeling_bailing_moe_v2.py @af8837e, which runs its layers for multi-token prediction.
    "bailing_moe": Family(
        keys={"n_shared_experts": "num_shared_experts"},
        only={"use_bias": False, "use_qkv_bias": False, "norm_head": False},
        modules={"qkv": ("query_key_value",), "o": ("dense",)},
        qkv_bias=False,
        output_bias=False,
        ffn_bias=False,
        fp32_routing=True,
        single_experts=True,
        own_mtp=_predictors,
        runs_mtp=True,
        refine=ling_layer,
    ),
    # Ling and Ring 2.5: inclusionAI/Ring-V2.5 models/modeling_bailing_moe_v2_5.py @c7facea. Ling 3 has other layers;
    # transformers 5.24 has a class for it, modeling_bailing_hybrid.py.
    "bailing_hybrid": Family(
        keys={"n_shared_experts": "num_shared_experts"},
        only={
            "use_bias": False,
            "use_qkv_bias": False,
            "no_kda_lora": True,
            "gated_attention_proj_granularity_type": "head_wise",
        },
        layer_types=hybrid_types,
        mixer=hybrid_mixer,
        ffn_bias=False,
        fp32_routing=True,
        router_bias=True,
        own_mtp=hybrid_mtp,
        runs_mtp=True,
        refine=hybrid_layer,
    ),
    # ChatGLM2, ChatGLM3, GLM-4-9B: czk1997/chatglm3-copy modeling_chatglm.py @456aa875cf1f,
    # Vastai/VastModelZOO llm/chatglm4/build_in/source_code/modeling_chatglm4_vacc.py @43aff36bd013.
    # ChatGLM-6B has other layers and other keys, so it is refused by a missing key.
    "chatglm": Family(
        keys={
            "num_hidden_layers": "num_layers",
            "num_key_value_heads": "multi_query_group_num",
            "head_dim": "kv_channels",
            "intermediate_size": "ffn_hidden_size",
            "vocab_size": "padded_vocab_size",
        },
        only={"multi_query_attention": True, "add_bias_linear": False, "rmsnorm": True, "post_layer_norm": True},
        modules={
            "qkv": ("query_key_value",),
            "o": ("dense",),
            "up": ("dense_h_to_4h",),
            "down": ("dense_4h_to_h",),
        },
        qkv_bias="add_qkv_bias",
        output_bias=False,
        ffn_bias=False,
    ),
    # DeepSeek-MoE-16B: ywhijn/moe-project-7101 modeling_deepseek.py @6224875b9db5.
    "deepseek": Family(single_experts=True),
    # DeepSeek-V4.1: only mcore-bridge has its layers, and no Hugging Face engine trains it (deepseek_v41.py).
    "deepseek_v41": Family(
        keys={"intermediate_size": "moe_intermediate_size"},
        only={"attention_bias": False},
        defaults={"tie_word_embeddings": False},
        router_bias=True,
        layer_types=_windows,
        mixer=compressed_mixer,
        refine=shared_layer,
        other=draft_weights,
    ),
    # EXAONE 3: vLLM's implementation, vllm-project/vllm vllm/transformers_utils/configs/exaone.py @4d5ee6c68071, and
    # the modules of EXAONE-3.0-7.8B as torch prints them, Retruth/deontic nlp_models/exaone/README.md @a77cf87a7777.
    "exaone": Family(
        keys={
            "num_hidden_layers": "num_layers",
            "hidden_act": "activation_function",
            "residual_dropout": "resid_dropout",
        },
        defaults={"tie_word_embeddings": True},
        modules={"o": ("out_proj",), "up": ("c_fc_0", "c_fc_1"), "down": ("c_proj",)},
        qkv_bias=False,
        output_bias=False,
        ffn_ratio=4,
        ffn_bias=False,
    ),
    # InternLM2, InternLM2.5: OpenGVLab/InternVL internvl_chat/internvl/model/internlm2/modeling_internlm2.py
    # @2410d1dbf208.
    "internlm2": Family(
        defaults={"bias": True},
        modules={"qkv": ("wqkv",), "o": ("wo",), "up": ("w1", "w3"), "down": ("w2",)},
        qkv_bias="bias",
        output_bias="bias",
        ffn_bias=False,
    ),
    # zhaoyukoon/damoxing_fenci_gongji internlm3-8b-instruct/modeling_internlm3.py @87e80c4e0953.
    "internlm3": Family(qkv_bias="qkv_bias", output_bias="bias", ffn_bias="bias"),
    # Llama's classes (transformers 5.24 modular_iquestcoder.py, which refuses other values of these keys).
    "iquestcoder": Family(only={"clip_qkv": None, "use_sliding_window": False}),
    # transformers has no such class. The layers are DeepSeek-V3's: NVIDIA-NeMo/Megatron-Bridge
    # src/megatron/bridge/models/kimi/kimi_bridge.py @dc805f5cf9e0.
    "kimi_k2": Family(router_bias=True, fp32_routing=True),
    # The text part of Kimi-VL has DeepSeek-V3's layers in code of its own, zhangbo2008/hf_deepseek_annotated
    # modeling_deepseek.py @27141e3ae049. Its tower is in own_towers.py.
    "kimi_vl": Family(router_bias=True, fp32_routing=True, single_experts=True, leaf_experts=True),
    # LLaVA-OneVision 1.5: randydl/LLaVA-OneVision-1.5 ds/llavaonevision1_5/configuration_llavaonevision1_5.py,
    # modeling_llavaonevision1_5.py @4db2e82ab2f2. Qwen3's layers. Its tower is in own_towers.py.
    "llavaonevision1_5": Family(
        defaults={
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_window_layers": 36,
            "tie_word_embeddings": False,
        },
        qk_norm="heads",
        layer_types=_windows_above,
    ),
    # MiMo-7B: jj8127/mimo_kor modeling_mimo.py @1bdf82cea258. Qwen2's layers, and MTP layers that no forward pass runs.
    "mimo": Family(qkv_bias=True, output_bias=False, layer_types=qwen_sliding, own_mtp=_predictors),
    # MiniCPM, MiniCPM4: a later transformers has a class for them, which refuses the sparse attention, too:
    # huggingface/transformers src/transformers/models/minicpm4/modular_minicpm4.py @3c80759eed27.
    "minicpm": Family(defaults={"tie_word_embeddings": True}, only={"num_experts": 0, "sparse_config": None}),
    # Qwen 1: mapengAdam/qianwen-72B modeling_qwen.py @c677f291486f, and its first version with other keys:
    # undefdev/Qwen-7B-Chat modeling_qwen.py @04df5dd57b94.
    "qwen": Family(
        aliases={
            "n_embd": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "ffn_hidden_size": "intermediate_size",
        },
        only={"no_bias": True},
        modules={"qkv": ("c_attn",), "o": ("c_proj",), "up": ("w1", "w2"), "down": ("c_proj",)},
        qkv_bias=True,
        output_bias=False,
        ffn_bias=False,
        ffn_width=_half_width,
    ),
    # TeleChat: Tele-AI/Telechat models/7B/modeling_telechat.py @9faf3bc40ee0. TeleChat2: Tele-AI/TeleChat2
    # llama_factory_training/modeling_telechat2.py @cd9287f3084d.
    "telechat": Family(
        keys={
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "ffn_hidden_size",
        },
        defaults={"tie_word_embeddings": True},
        only={"embed_layernorm": False, "num_moe_experts": 0},
        modules={"qkv": ("query", "key_value"), "o": ("dense",)},
        qkv_bias=False,
        output_bias=True,
        ffn_bias=False,
        refine=_biased_down,
    ),
}
"""By model_type of the text model."""

TEXT_OF_VERSION: Mapping[str, Mapping[float, str]] = {"minicpmv": {2.6: "qwen2", 4.5: "qwen3"}}
"""The type of the language model by `version`, of types whose config.json does not name it. The tower and the sources
are in own_towers.py."""

TEXT_OF: Mapping[str, str] = {"dots_ocr": "qwen2"}
"""The type of the language model by that of the whole model, where config.json names no other. As above."""

WITH_LLM_CONFIG = frozenset({"internvl_chat", "ovis2_5"})
"""Types whose language model is a part of config.json with this name. The towers are in own_towers.py."""
