"""Families that transformers 5.6 does not have and a later release does, up to the one of requirements/newer.in.

`newer-python -m benchmarks.families --newer` compares the parameters of each with those that transformers builds.
"""

from collections.abc import Mapping
from dataclasses import replace

from backend.job.model.config import Config
from backend.job.model.family import Family, qwen_sliding
from backend.job.model.qwen4 import qwen4_layer, qwen4_types
from backend.job.model.shape import Experts, LayerShape
from backend.job.model.sparse import deepseek_layer


def _axk1_layer(_config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """modeling_axk1.py of 5.19 AXK1MoE: a norm follows the experts, but not a dense FFN."""
    return replace(layer, ffn_norm=isinstance(layer.ffn, Experts))


NEWER: Mapping[str, Family] = {
    "axk1": Family(
        defaults={
            "first_k_dense_replace": 1,
            "intermediate_size": 18432,
            "kv_lora_rank": 512,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 192,
            "n_shared_experts": 1,
            "num_attention_heads": 64,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 61,
            "num_key_value_heads": 64,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "vocab_size": 163840,
        },
        router_bias=True,
        fp32_routing=True,
        refine=_axk1_layer,
    ),
    "deepseek_v32": Family(
        defaults={
            "first_k_dense_replace": 3,
            "index_head_dim": 128,
            "index_n_heads": 64,
            "intermediate_size": 18432,
            "kv_lora_rank": 512,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_attention_heads": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 61,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        router_bias=True,
        fp32_routing=True,
        refine=deepseek_layer,
    ),
    "mellum": Family(qk_norm="heads", layer_types=qwen_sliding),
    "qwen4_exp": Family(
        defaults={
            "hc_count": 4,
            "hc_lowrank": 320,
            "head_dim": 256,
            "heads_per_ngram": 8,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_value_head_dim": 128,
            "make_ngram_vocab_size_divisible_by": 128,
            "moe_intermediate_size": 512,
            "ngram_size": 3,
            "ngram_vocab_size_base": 20_000_000,
            "num_attention_heads": 16,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "num_hidden_layers": 40,
            "num_key_value_heads": 2,
            "ple_conv_kernel_size": 4,
            "shared_expert_intermediate_size": 512,
            "vocab_size": 248320,
        },
        fp32_norms=True,
        qk_norm="heads",
        gate="query",
        shared_gate=True,
        joined=False,
        norms="none",
        layer_types=qwen4_types,
        refine=qwen4_layer,
    ),
}
"""By model_type of the text model, without the suffix `_text`."""
NEWER_TOWERS: tuple[str, ...] = ("qwen4_exp",)
"""Types in vision.TOWERS that only a later transformers has."""
