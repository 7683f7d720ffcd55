"""Jobs that rules are tested with: models, and job_of, which puts values into them."""

from backend.job.mapping import parse_job, with_values
from benchmarks.small_models import GEMMA_4_WITH_LAYER_INPUTS, NEWER_MODELS, SEEING, SMALL_MODELS, TOWER_MODELS
from tools.write_models import read_own_code

VISION = {"cluster": {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8}, "model": {"preset": "qwen3-vl-8b"}}
TEXT = {**VISION, "training": {"images_per_sample": 0}}
QWEN25_VL = {**VISION, "model": {"preset": "qwen2.5-vl-7b"}}
MOE = {**VISION, "model": {"preset": "qwen3-30b-a3b"}}
DENSE = {**VISION, "model": {"preset": "qwen3-8b"}}
PACKS = {"training.packing": True}
TWO_SETS = {"training.dataset": "a,b", "training.mix_strategy": "interleave_under"}
STREAMS = {"engine": "swift-megatron", "training.max_steps": 9, "extra": {"streaming": True}}
ZERO3_OFFLOAD = {"engine": "llamafactory-zero3-offload"}
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}
FALCON_H1 = {**DENSE, "model": {"hf_config": SMALL_MODELS["falcon_h1"]}}
JAMBA = {**DENSE, "model": {"hf_config": SMALL_MODELS["jamba"]}}
BAMBA = {**DENSE, "model": {"hf_config": SMALL_MODELS["bamba"]}}
GRANITE = {**DENSE, "model": {"hf_config": SMALL_MODELS["granitemoehybrid"]}}
GLM, PLAIN_GRANITE = ({**DENSE, "model": {"hf_config": SMALL_MODELS[name]}} for name in ("glm", "granite"))
KIMI_LINEAR = {**DENSE, "model": {"hf_config": NEWER_MODELS["kimi_linear"]}}
OLMO_HYBRID = {**DENSE, "model": {"hf_config": {**SHAPE, "model_type": "olmo_hybrid"}}}
GLM_4V = {
    **VISION,
    "model": {
        "hf_config": {
            "model_type": "glm4v",
            "text_config": {**SHAPE, "model_type": "glm4v_text", "num_key_value_heads": 4},
            "vision_config": {
                "model_type": "glm4v_vision", "hidden_size": 64, "depth": 2, "num_heads": 4, "patch_size": 14,
                "out_hidden_size": 64, "intermediate_size": 128, "image_size": 56,
            },
        }
    },
}  # fmt: skip
EXAONE_4_5 = {**VISION, "model": {"hf_config": TOWER_MODELS["exaone4_5"]}}
GPT_NEOX = {**DENSE, "model": {"hf_config": SMALL_MODELS["gpt_neox"]}}
GPT2 = {**DENSE, "model": {"hf_config": SMALL_MODELS["gpt2"]}}
GEMMA_3N = {**DENSE, "model": {"hf_config": SMALL_MODELS["gemma3n_text"]}}
GLM_5 = {**DENSE, "model": {"hf_config": SMALL_MODELS["glm_moe_dsa"]}}
GLM_SHARED = {
    **DENSE,
    "model": {
        "hf_config": {
            **SMALL_MODELS["glm_moe_dsa"],
            "indexer_types": None,
            "index_topk_freq": 4,
            "index_skip_topk_offset": 2,
        }
    },
}
GLM_LISTED = {
    **DENSE,
    "model": {"hf_config": {**SMALL_MODELS["glm_moe_dsa"], "indexer_types": ["full", "shared", "full", "shared"]}},
}
HY_V4, COMPRESSED = ({**DENSE, "model": {"hf_config": NEWER_MODELS[name]}} for name in ("hy_v4", "deepseek_v4"))
AXK2 = {**DENSE, "model": {"hf_config": NEWER_MODELS["axk2"]}}
MIMO_V2 = {**DENSE, "model": {"hf_config": NEWER_MODELS["mimo_v2_flash"]}}
MLLAMA = {**DENSE, "model": {"hf_config": SEEING["mllama"]}}
GEMMA_4 = {**DENSE, "model": {"preset": "gemma-4-12b"}}
GEMMA_4_SMALL = {**DENSE, "model": {"hf_config": GEMMA_4_WITH_LAYER_INPUTS}}
GEMMA_2 = {**DENSE, "model": {"preset": "gemma-2-9b"}}
VAULT_GEMMA = {**DENSE, "model": {"hf_config": {**SMALL_MODELS["gemma2"], "model_type": "vaultgemma"}}}
GEMMA_3 = {**DENSE, "model": {"preset": "gemma-3-1b"}}
GPT_OSS = {**DENSE, "model": {"preset": "gpt-oss-20b"}}
INTERNVL_CHAT, INTERNLM_CHAT = (
    {**DENSE, "model": {"hf_config": read_own_code()[name]["config"]}} for name in ("InternVL3.5-8B", "InternVL2.5-8B")
)
MIMO = {**DENSE, "model": {"hf_config": read_own_code()["MiMo-7B"]["config"]}, "extra": {"trust_remote_code": True}}
LING = {**DENSE, "model": {"hf_config": read_own_code()["Ling-lite-1.5"]["config"]}}
LING_2_5 = {**DENSE, "model": {"hf_config": read_own_code()["Ling 2.5, defaults"]["config"]}}
LING_3 = {**DENSE, "model": {"hf_config": read_own_code()["Ling-3.0-tiny"]["config"]}}
DEEPSEEK_V4 = {
    **DENSE,
    "model": {"hf_config": {"model_type": "deepseek_v4", "hidden_size": 64, "num_hidden_layers": 2}},
}
FROZEN = {"training.freeze.vision_tower": True, "training.freeze.projector": True}
QUANTISED = {
    **DENSE,
    "model": {"hf_config": {**SHAPE, "model_type": "qwen3", "quantization_config": {"quant_method": "gptq"}}},
}
QWEN2_MOE = {
    **SHAPE,
    "model_type": "qwen2_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
GROUPS = {
    **DENSE,
    "model": {"hf_config": {**SHAPE, "hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 6}},
}
EVALUATES = {"training.eval_size": 0.1, "training.eval_steps": 100}


def job_of(base, values):
    job, problems = parse_job(base)
    assert not problems
    return with_values(job, values)
