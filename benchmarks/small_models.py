"""Small models of many families, as keys of config.json: for the peak of a step, and for a real step of the engine."""

from collections.abc import Mapping
from typing import Any

from backend.job.model.families import FAMILIES

SIZES: Mapping[str, int] = {
    "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
_WIDE_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 256}
_LOCAL_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 256}
_ROUTED_EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
_LATENT = {
    "kv_lora_rank": 64, "q_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64,
    "head_dim": 32, "num_key_value_heads": 4,
}  # fmt: skip
_INDEXER = {"index_n_heads": 8, "index_head_dim": 32, "index_topk": 64}
_LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
}  # fmt: skip
_ALL_HEADS = {"num_key_value_heads": None, "head_dim": None}
"""Families without these keys."""
_MAMBA = {
    "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 16, "mamba_expand": 2, "mamba_chunk_size": 64,
    "mamba_n_groups": 1,
}  # fmt: skip
_OWN: Mapping[str, Mapping[str, Any]] = {
    "apertus": {}, "arcee": {}, "cohere": {}, "cohere2": {}, "ernie4_5": {}, "exaone4": {},
    "falcon": {"head_dim": None, "num_kv_heads": None, "multi_query": False},
    "gemma": {}, "gemma2": {}, "gemma3_text": {}, "glm": {}, "glm4": {},
    "granite": {}, "helium": {}, "hunyuan_v1_dense": {}, "llama": {}, "ministral": {},
    "ministral3": {}, "mistral": {}, "nemotron": {}, "olmo": {}, "olmo2": {}, "olmo3": {}, "phi": {},
    "phi3": {}, "qwen2": {}, "qwen3": {},
    "seed_oss": {"attention_dropout": 0.0}, "smollm3": {}, "stablelm": {}, "starcoder2": {},
    "bloom": {**_ALL_HEADS, "intermediate_size": None},
    "gpt2": {**_ALL_HEADS, "attn_pdrop": 0.0}, "gpt_neox": _ALL_HEADS, "opt": _ALL_HEADS,
    "bamba": {**_MAMBA, "attn_layer_indices": [2]},
    "dots1": {**_ROUTED_EXPERTS, "n_shared_experts": 1},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 512},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
        "intermediate_size": [768, 768, 512, 768], "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
        "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 512, "laurel_rank": 16,
    },
    "gemma4_text": {
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "global_head_dim": 128, "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 512,
        "num_kv_shared_layers": 0,
    },
    "granitemoehybrid": {
        **_MAMBA, **_LOCAL_EXPERTS, "shared_intermediate_size": 512,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
    },
    "hunyuan_v1_moe": {"num_experts": 8, "moe_topk": 2, "intermediate_size": 256},
    "jamba": {"attn_layer_period": 4, "attn_layer_offset": 2, "num_experts": 4, "num_experts_per_tok": 2},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    "nemotron_h": {
        "layers_block_type": ["mamba", "mlp", "attention", "mlp"], "num_hidden_layers": None, "mamba_num_heads": 8,
        "mamba_head_dim": 64, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 64,
    },
    "deepseek_v3": {**_ROUTED_EXPERTS, **_LATENT},
    "glm4_moe": _ROUTED_EXPERTS,
    "glm_moe_dsa": {
        **_ROUTED_EXPERTS, **_LATENT, **_INDEXER, "first_k_dense_replace": None, "n_shared_experts": 1,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    },
    "gpt_oss": _LOCAL_EXPERTS,
    "granitemoe": _LOCAL_EXPERTS,
    "llama4_text": {
        **_LOCAL_EXPERTS, "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8192,
    },
    "minimax_m2": _LOCAL_EXPERTS,
    "mixtral": _LOCAL_EXPERTS,
    "olmoe": _WIDE_EXPERTS,
    "phimoe": _LOCAL_EXPERTS,
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 512},
    "qwen3_moe": _EXPERTS,
    "qwen3_next": {**_EXPERTS, **_LINEAR, "shared_expert_intermediate_size": 256},
    "qwen3_5_text": _LINEAR,
}  # fmt: skip
"""Model type -> keys beside the sizes; None removes a key. The attention of each runs in a kernel of torch on CPU,
which takes neither dropout nor a single key head for all queries."""


def _config(model_type: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json; the family's own name of a key takes the place of the common one."""
    names = FAMILIES[model_type.removesuffix("_text")].keys
    sizes = {names.get(key, key): value for key, value in SIZES.items()}
    keys = {"model_type": model_type, **sizes, **own}
    return {key: value for key, value in keys.items() if value is not None}


CROSS_ATTENTION_TOWER: Mapping[str, Any] = {
    "model_type": "mllama_vision_model", "num_hidden_layers": 2, "num_global_layers": 2, "hidden_size": 256,
    "intermediate_size": 1024, "attention_heads": 4, "image_size": 32, "patch_size": 4,
    "intermediate_layers_indices": [0], "vision_output_dim": 512,
}  # fmt: skip
"""The tower of a small Mllama."""
SEEING: Mapping[str, Mapping[str, Any]] = {
    "mllama": {
        "model_type": "mllama",
        "text_config": {**SIZES, "model_type": "mllama_text_model", "cross_attention_layers": [1, 3]},
        "vision_config": CROSS_ATTENTION_TOWER,
    },
}
"""Models whose language part alone is not all that runs with images. Model type -> config.json."""

SMALL_MODELS: Mapping[str, Mapping[str, Any]] = {
    model_type: _config(model_type, own) for model_type, own in _OWN.items()
}
"""Model type -> config.json."""

_NEWER: Mapping[str, Mapping[str, Any]] = {
    "axk1": {**_ROUTED_EXPERTS, **_LATENT, "n_shared_experts": 1},
    "axk2": {**_ROUTED_EXPERTS, **_LATENT, **_INDEXER, "n_shared_experts": 1, "n_group": None, "topk_group": None},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [11, 11, 10]},
            "full_attention": None,
        },
    },
    "cohere2_moe": {
        **_EXPERTS, "intermediate_size": 256, "moe_intermediate_size": None, "num_shared_experts": 1,
        "first_k_dense_replace": 1, "prefix_dense_intermediate_size": 768,
    },
    "deepseek_v32": {**_ROUTED_EXPERTS, **_LATENT, **_INDEXER, "n_shared_experts": 1},
    "deepseek_v4": {
        "num_key_value_heads": 1, "q_lora_rank": 64, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 256, "o_groups": 2, "o_lora_rank": 64, "hc_mult": 4, "sliding_window": 128,
        "partial_rotary_factor": 0.5, "index_n_heads": 8, "index_head_dim": 32, "index_topk": 16,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 32},
        "layer_types": [
            "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
            "compressed_sparse_attention",
        ],
        "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
    },
    "gemma4_unified_text": {
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "global_head_dim": 128,
    },
    "glm5_next_text": {
        **_ROUTED_EXPERTS, **_LATENT, **_INDEXER, "qk_rope_head_dim": 0, "qk_nope_head_dim": 64, "head_dim": None,
        "first_k_dense_replace": None, "n_shared_experts": 1, "index_kpool": 8, "hc_mult": 4, "linear_num_heads": 4,
        "linear_head_dim": 64, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "layer_types": ["linear_attention", "linear_attention", "indexed_attention", "linear_attention"],
    },
    "granite_swa": {},
    "granitemoe_swa": {**_LOCAL_EXPERTS, "shared_intermediate_size": 256},
    "hy_v4": {
        **_ROUTED_EXPERTS, **_LATENT, **_INDEXER, "first_k_dense_replace": None, "n_shared_experts": 1, "hc_mult": 4,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    },
    "hyperclovax": {},
    "kimi_linear": {
        **_LATENT, **_EXPERTS, "q_lora_rank": None, "head_dim": None, "linear_head_dim": 64, "linear_num_heads": 4,
        "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    },
    "laguna": {
        **_EXPERTS, "shared_expert_intermediate_size": 256, "num_attention_heads_per_layer": [4, 4, 8, 4],
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "mellum": _EXPERTS,
    "mimo_v2_flash": {
        **_ROUTED_EXPERTS, "first_k_dense_replace": None, "head_dim": 64, "v_head_dim": 32,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "minimax_m3_vl_text": {
        **_LOCAL_EXPERTS, "dense_intermediate_size": 768, "shared_intermediate_size": 256, "rotary_dim": 32,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "index_n_heads": 2, "index_head_dim": 32,
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse", "full_attention"],
        "index_block_size": 16, "index_topk_blocks": 4,
    },
    "minicpm3": {**_LATENT, "v_head_dim": None, "head_dim": None},
    "qwen4_exp_text": {
        **_EXPERTS,
        **_LINEAR,
        "shared_expert_intermediate_size": 256,
        "hc_count": 4,
        "hc_lowrank": 32,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 64,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [2],
        "ple_embed_dim": 64,
        "ngram_vocab_size_base": 1000,
        "heads_per_ngram": 2,
    },
    "zaya": {**_EXPERTS, "intermediate_size": None, "num_experts_per_tok": 1, "router_hidden_size": 64},
}  # fmt: skip
NEWER_MODELS: Mapping[str, Mapping[str, Any]] = {
    model_type: _config(model_type, own) for model_type, own in _NEWER.items()
}
"""The same for types that only the transformers of requirements/newer.in has."""
NO_SDPA = ("deepseek_v4", "gpt_oss", "granite_swa", "granitemoe_swa", "hy_v4", "mimo_v2_flash")
"""Models with attention sinks, which transformers computes without SDPA."""

IMAGE_TOKEN = 4095
_TEXT = {**SIZES, "vocab_size": 4096}
_TOWER: Mapping[str, Any] = {
    "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4, "patch_size": 14,
}  # fmt: skip
_TOWER_MODELS: Mapping[str, Mapping[str, Any]] = {
    "cohere_compass": {
        "text_config": {**_TEXT, **_NEWER["cohere_compass_text"], "model_type": "cohere_compass_text"},
        "vision_config": {
            "model_type": "cohere_compass_vision", "hidden_size": 256, "intermediate_size": 1024, "depth": 4,
            "num_heads": 4, "patch_size": 14, "out_hidden_size": 256, "num_position_embeddings": 256,
            "deepstack_visual_indexes": [1],
        },
        "image_token_id": IMAGE_TOKEN, "tie_word_embeddings": False,
    },
    "exaone4_5": {
        "text_config": {**_TEXT, "model_type": "exaone4"}, "image_token_id": IMAGE_TOKEN, "tie_word_embeddings": False,
        "vision_config": {
            "model_type": "exaone4_5_vision", "hidden_size": 256, "intermediate_size": 1024, "depth": 4, "num_heads": 4,
            "num_key_value_heads": 2, "patch_size": 14, "out_hidden_size": 256, "fullatt_block_indexes": [0, 1, 2, 3],
        },
    },
    "gemma4_unified": {
        "text_config": {
            **_TEXT, "model_type": "gemma4_unified_text", "global_head_dim": 128,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
        "vision_config": {
            "model_type": "gemma4_unified_vision", "patch_size": 8, "pooling_kernel_size": 2, "mm_embed_dim": 512,
            "output_proj_dims": 512, "mm_posemb_size": 64,
        },
        "image_token_id": IMAGE_TOKEN, "tie_word_embeddings": False,
    },
    "granite4_vision": {
        "text_config": {**_TEXT, "model_type": "granite4_vision_text"}, "image_token_index": IMAGE_TOKEN,
        "vision_config": {
            **_TOWER, "model_type": "siglip_vision_model", "image_size": 224, "vision_use_head": False,
        },
        "tie_word_embeddings": False, "downsample_rate": "2/4", "deepstack_layer_map": [[-3, 1], [-1, 0]],
        "spatial_target_layers": [1, 2, 3, 3], "image_grid_pinpoints": [[224, 224]],
        "vision_feature_select_strategy": "full",
    },
    "hunyuan_vl": {
        "text_config": {
            **_TEXT, "model_type": "hunyuan_vl_text", "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 8, 8, 8]},
        },
        "vision_config": {**_TOWER, "model_type": "hunyuan_vl_vision", "max_image_size": 224},
        "image_token_id": IMAGE_TOKEN, "tie_word_embeddings": False,
    },
    "kimi_k25": {
        "text_config": {**_TEXT, "model_type": "qwen3"}, "image_token_id": IMAGE_TOKEN, "tie_word_embeddings": False,
        "vision_config": {**_TOWER, "model_type": "kimi_k25_vision", "pos_emb_height": 16, "pos_emb_width": 16},
        "projection_hidden_size": 256,
    },
    "minicpmv4_6": {
        "text_config": {**_TEXT, "model_type": "qwen3"}, "image_token_id": IMAGE_TOKEN, "tie_word_embeddings": False,
        "vision_config": {**_TOWER, "model_type": "minicpmv4_6_vision", "image_size": 512, "patch_size": 16},
        "insert_layer_id": 1, "image_size": 512,
    },
    "minimax_m3_vl": {
        "text_config": {**_TEXT, **_NEWER["minimax_m3_vl_text"], "model_type": "minimax_m3_vl_text"},
        "vision_config": {**_TOWER, "model_type": "minimax_m3_vl_vision"}, "projector_hidden_size": 512,
        "image_token_index": IMAGE_TOKEN,
    },
    "muse_glimmer": {
        "text_config": {**_TEXT, "model_type": "muse_glimmer_text", "layer_types": ["full_attention"] * 4},
        "vision_config": {**_TOWER, "model_type": "muse_glimmer_vision", "pos_emb_height": 16, "pos_emb_width": 16},
        "out_hidden_size": 1024, "projector_hidden_size": 512, "image_token_id": IMAGE_TOKEN,
    },
    "qwen3_asr": {
        "text_config": {**_TEXT, "model_type": "qwen3"}, "audio_token_id": IMAGE_TOKEN, "tie_word_embeddings": False,
        "audio_config": {
            "model_type": "qwen3_asr_encoder", "num_mel_bins": 32, "encoder_layers": 4, "encoder_attention_heads": 4,
            "encoder_ffn_dim": 1024, "d_model": 256, "output_dim": 256, "downsample_hidden_size": 64,
        },
        "pad_token_id": 0, "eos_token_id": 2,
    },
    "step3p7": {
        "text_config": {
            **_TEXT, "model_type": "step3p5", "n_routed_experts": 8, "num_experts_per_tok": 2, "share_expert_dim": 256,
            "moe_intermediate_size": 256, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "layer_types": ["full_attention"] + ["sliding_attention"] * 3, "sliding_window": 4096,
            "num_sliding_attention_heads": 8,
        },
        "vision_config": {**_TOWER, "model_type": "step3p5_vision", "image_size": 224, "mlp_ratio": 4.0},
        "image_token_id": IMAGE_TOKEN,
    },
}  # fmt: skip
TOWER_MODELS: Mapping[str, Mapping[str, Any]] = {
    name: {"model_type": name, **keys} for name, keys in _TOWER_MODELS.items()
}
"""Models that see or hear, for benchmarks/newer_towers.py. Model type -> config.json."""
TOWER_IMAGES: Mapping[str, tuple[int, int]] = {
    "cohere_compass": (256, 64), "exaone4_5": (256, 64), "gemma4_unified": (128, 128), "granite4_vision": (512, 128),
    "hunyuan_vl": (256, 64),
    "kimi_k25": (256, 64), "minicpmv4_6": (256, 16), "minimax_m3_vl": (256, 64), "muse_glimmer": (256, 64),
    "qwen3_asr": (104, 104), "step3p7": (256, 16),
}  # fmt: skip
"""Patches of an image, and the tokens that it becomes."""
GEMMA_4_WITH_LAYER_INPUTS: Mapping[str, Any] = {
    "model_type": "gemma4", "audio_config": None,
    "text_config": {
        "model_type": "gemma4_text", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 64, "vocab_size": 1024,
        "vocab_size_per_layer_input": 1024, "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 4,
        "use_double_wide_mlp": True, "sliding_window": 64, "final_logit_softcapping": 30.0,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
    "vision_config": {
        "model_type": "gemma4_vision", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "patch_size": 4,
    },
}  # fmt: skip
"""A small Gemma 4 with embeddings of every layer and shared keys, like E2B and E4B."""
LING_2_5: Mapping[str, Any] = {
    "model_type": "bailing_hybrid",
    "first_k_dense_replace": 4,
    "group_norm_size": 64,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "kv_lora_rank": 64,
    "layer_group_size": 4,
    "moe_intermediate_size": 64,
    "n_group": 2,
    "num_attention_heads": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 8,
    "num_key_value_heads": 8,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_bias": False,
    "use_qk_norm": True,
    "use_qkv_bias": False,
    "v_head_dim": 32,
    "vocab_size": 1024,
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "moe_router_enable_expert_bias": True,
}  # fmt: skip
"""A small Ling 2.5, whose heads of keys are as many as those of queries."""
