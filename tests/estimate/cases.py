"""Jobs from which the tests of the estimate start."""

from collections.abc import Mapping
from typing import Any

from backend.job.cluster import Cluster
from backend.job.job import Job, Model
from backend.job.mapping import with_values

SEED = Job(
    name="seed",
    cluster=Cluster(gpu="h100-80g", nodes=4, gpus_per_node=8),
    model=Model(preset="qwen3-vl-8b"),
)
"""4 nodes x 8 H100, full fine-tuning at cutoff 4096, micro-batch 1, accumulation 8, nothing frozen."""

TP4 = {"parallel.tensor": 4}
TP8 = {"parallel.tensor": 8, "training.micro_batch_size": 2}
TP2_PP2_VPP2 = {"parallel.tensor": 2, "parallel.pipeline": 2, "parallel.virtual_pipeline": 2}
NO_IMAGES = {"training.images_per_sample": 0}
DEEPSEEK_V32: Mapping[str, Any] = {
    "model_type": "deepseek_v32", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "first_k_dense_replace": 3, "num_attention_heads": 128, "num_key_value_heads": 128,
    "vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "index_n_heads": 64,
    "index_head_dim": 128, "index_topk": 2048,
}  # fmt: skip
"""The defaults of transformers 5.19 configuration_deepseek_v32.py, which are those of DeepSeek-V3.2."""
GLM_5: Mapping[str, Any] = {
    "model_type": "glm_moe_dsa", "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 2048,
    "num_hidden_layers": 78, "first_k_dense_replace": 3, "num_attention_heads": 64, "num_key_value_heads": 64,
    "vocab_size": 154880, "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
    "v_head_dim": 256, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "index_n_heads": 32,
    "index_head_dim": 128, "index_topk": 2048,
}  # fmt: skip
"""The defaults of transformers 5.19 configuration_glm_moe_dsa.py, which are those of GLM-5."""


def job(*edits: dict[str, Any], **values: Any) -> Job:
    """Return the base job with edits. A double underscore in a keyword stands for a dot."""
    merged = {path: value for edit in edits for path, value in edit.items()}
    merged |= {name.replace("__", "."): value for name, value in values.items()}
    return with_values(SEED, merged)
