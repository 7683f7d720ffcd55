"""Which towers compute gradients of their patches although they are frozen: under LoRA with gradient checkpointing."""

WITH_PATCH_GRADIENTS = frozenset(
    {
        "aya_vision", "cohere2_vision", "deepseek_ocr2", "ernie4_5_vl_moe", "exaone4_5", "gemma3", "granite4_vision",
        "hyperclovax_vision_v2", "idefics3",
        "internvl", "lfm2_vl", "llama4", "llava", "llava_next", "llava_next_video", "llava_onevision", "minicpmv",
        "minicpmv4_6", "minicpmv4_7", "mistral3", "mllama", "paligemma", "qwen2_5_omni_thinker", "qwen2_5_vl",
        "qwen2_audio", "qwen2_vl", "qwen3_asr", "smolvlm", "video_llava", "voxtral",
    }
)  # fmt: skip
"""Types whose tower names its patch embedding as its input embedding.

PEFT 0.18.1 (peft_model.py prepare_model_for_gradient_checkpointing) asks transformers 5.6.0 to let gradients flow to
the input embeddings (modeling_utils.py enable_input_require_grads), and transformers does so for those of every part of
the model. LLaMA-Factory 0.9.5 checkpoints no frozen layer (model/model_utils/checkpointing.py), so the tower stores all
its activations. tests/estimate/test_real_modules.py asks transformers which types these are, and
tests/engines/test_newer_types.py asks a later one. For `minicpmv` it was read in its own code (own_towers.py).
ms-swift does not do so (backend/estimate/estimate.py layers_of_job).
"""
