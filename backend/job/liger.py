"""What Liger's kernels replace in transformers' modules, beside the loss, by model type.

LLaMA-Factory 0.9.5 (model/model_utils/liger_kernel.py) calls Liger before it loads a model, and Liger 0.8.2
(transformers/monkey_patch.py) replaces classes by name. A name that transformers 5.6.0 does not have changes nothing:
Qwen2-VL's norms stay transformers' own. Experts are replaced too, by kernels that are not described here.
"""

_BOTH = frozenset(
    {
        "gemma", "gemma2", "gemma3", "gemma3_text", "glm4", "granite", "llama", "mistral", "mllama", "olmo2",
        "paligemma", "phi3", "qwen2", "qwen3", "qwen3_5",
    }
)  # fmt: skip
_NORMS_ALONE = frozenset({"glm4v", "gpt_oss", "mixtral", "qwen3_moe", "qwen3_next"})
_FUNCTIONS_ALONE = frozenset({"qwen2_vl", "qwen2_5_vl"})

NORMS = _BOTH | _NORMS_ALONE
"""Types whose RMSNorms are one kernel, which saves the input as it came."""
FUNCTIONS = _BOTH | _FUNCTIONS_ALONE
"""Types whose SwiGLU or GeGLU is one kernel, which saves its two inputs and overwrites them with their gradients."""
