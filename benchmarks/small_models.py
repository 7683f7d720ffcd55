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
    "num_key_value_heads": 4,
}  # fmt: skip
_LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
}  # fmt: skip
_OWN: Mapping[str, Mapping[str, int | None]] = {
    "arcee": {}, "cohere": {}, "cohere2": {}, "ernie4_5": {}, "exaone4": {}, "falcon": {"head_dim": None}, "gemma": {},
    "gemma2": {}, "gemma3_text": {}, "glm": {}, "glm4": {}, "gpt2": {}, "gpt_neox": {}, "granite": {}, "helium": {},
    "llama": {}, "ministral3": {}, "mistral": {}, "olmo": {}, "olmo2": {}, "olmo3": {}, "opt": {}, "phi": {},
    "phi3": {}, "qwen2": {}, "qwen3": {}, "seed_oss": {}, "smollm3": {}, "stablelm": {}, "starcoder2": {},
    "deepseek_v3": {**_ROUTED_EXPERTS, **_LATENT},
    "glm4_moe": _ROUTED_EXPERTS,
    "gpt_oss": _LOCAL_EXPERTS,
    "granitemoe": _LOCAL_EXPERTS,
    "minimax_m2": _LOCAL_EXPERTS,
    "mixtral": _LOCAL_EXPERTS,
    "olmoe": _WIDE_EXPERTS,
    "phimoe": _LOCAL_EXPERTS,
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 512},
    "qwen3_moe": _EXPERTS,
    "qwen3_next": {**_EXPERTS, **_LINEAR, "shared_expert_intermediate_size": 256},
    "qwen3_5_text": _LINEAR,
}  # fmt: skip
"""Model type -> keys beside the sizes; None removes a key."""


def _config(model_type: str, own: Mapping[str, int | None]) -> dict[str, Any]:
    """Return a config.json; the family's own name of a key takes the place of the common one."""
    names = FAMILIES[model_type.removesuffix("_text")].keys
    sizes = {names.get(key, key): value for key, value in SIZES.items()}
    keys = {"model_type": model_type, **sizes, **own}
    return {key: value for key, value in keys.items() if value is not None}


SMALL_MODELS: Mapping[str, Mapping[str, Any]] = {
    model_type: _config(model_type, own) for model_type, own in _OWN.items()
}
"""Model type -> config.json."""
