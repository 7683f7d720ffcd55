"""The values of `model_type` that each Megatron engine accepts, and those whose vision part it trains wrongly."""

# extras/constants.py MCA_SUPPORTED_MODELS of LLaMA-Factory 0.9.5, without qwen3_next: mcore_adapter 0.10.0.dev0
# (models/qwen3_next/__init__.py) passes linear_attention_type, which megatron-core 0.16.1 refuses with a TypeError.
MCA_MODEL_TYPES = frozenset(
    {
        "deepseek_v3",
        "glm4_moe",
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3",
        "qwen3_moe",
        "qwen3_5",
        "qwen3_5_moe",
    }
)

# The model_types that mcore-bridge 1.6.5 registers (model/gpts/*.py, model/mm_gpts/*.py). ms-swift 4.6.0 ends with
# "Model ... is not supported" for any other (swift/megatron/arguments/megatron_args.py).
SWIFT_MODEL_TYPES = frozenset(
    {
        "bailing_hybrid", "bailing_moe", "deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4",
        "deepseek_v41", "dots1", "ernie4_5", "ernie4_5_moe", "gemma4", "gemma4_unified", "glm4", "glm4_moe",
        "glm4_moe_lite", "glm4v", "glm4v_moe", "glm5_next", "glm_moe_dsa", "gpt_oss", "hy_v3", "internlm3", "internvl",
        "internvl_chat", "kimi_k2", "kimi_k25", "kimi_vl", "llama", "llama4", "llava_onevision1_5", "mimo",
        "minicpmv4_6", "minimax_m2", "muse_glimmer", "nemotron_h", "olmoe", "ovis2_5", "qwen2", "qwen2_5_omni",
        "qwen2_5_vl", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_asr", "qwen3_moe",
        "qwen3_next", "qwen3_omni_moe", "qwen3_vl", "qwen3_vl_moe", "qwen4_exp",
    }
)  # fmt: skip

# mcore-bridge 1.6.5 builds these with what megatron-core lacks up to 0.19.2 (experimental_attention_variant/csa.py,
# csa2.py and deepseek_v4_hybrid_attention.py; mark_keep_in_fp32 of transformer/module.py): model/gpts/deepseek_v4.py
# "Please install the Megatron-Core dev branch", model/mm_gpts/deepseek_v41.py, model/mm_gpts/glm5_next.py "requires a
# recent Megatron-LM dev". glm5_next also needs a patch of Megatron-LM that mcore-bridge brings.
SWIFT_DEV_MEGATRON = frozenset({"deepseek_v4", "deepseek_v41", "glm5_next"})

# Model types of config.json that mcore-bridge registers under another name, which ms-swift finds by the architecture:
# LLaVA-OneVision 1.5 is llava_onevision1_5 there.
SWIFT_OTHER_NAMES = frozenset({"llavaonevision1_5"})

# Types of the language model of internvl_chat that mcore-bridge 1.6.5 takes (model/mm_gpts/internvl.py prepare_model).
SWIFT_CHAT_LANGUAGE_MODELS = frozenset({"qwen2", "qwen3", "qwen3_moe", "gpt_oss"})

# models/{qwen2_vl,qwen2_5_vl,qwen3_vl,qwen3_5} of mcore_adapter call parallel_functions/encoder_sequence_parallel.py.
# If a micro-batch has fewer images than TP x CP, the backward pass divides the gradient by TP. The ranks' gradients are
# parts of a sum, so only 1/TP of it is left. Otherwise the ranks split the images, and each rank keeps only the
# gradient that its own part of the sequence gives for its own images; without sequence parallel nothing adds up
# the gradients of the ranks. Measured by tests/e2e/test_vision_gradients.py.
MCA_WRONG_VISION = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"})

# mcore-bridge 1.6.5 model/mm_gpts/qwen3_vl.py (_get_inputs_embeds, also called by qwen3_omni.py) gives each tensor
# parallel rank the deep-stack features of its own part of the sequence. Megatron-Core averages the gradients of the
# tower over these ranks (models/huggingface/module.py, average_gradients_across_tp_domain), but here they are parts of
# a sum. Measured by tests/e2e/test_vision_gradients.py.
SWIFT_CUT_DEEP_STACK = frozenset({"qwen3_vl", "qwen3_vl_moe", "qwen3_omni_moe"})
