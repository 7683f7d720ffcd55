"""Jobs that break a rule: (job file, values, code of the problem)."""

from tests.job.rule_cases import attention, keys, models, plans

CASES = [*plans.CASES, *attention.CASES, *models.CASES, *keys.CASES]

ONLY_THE_USER_KNOWS = {
    "megatron_core_dev", "chosen_keys_megatron_core", "offload_needs_new_deepspeed", "chosen_keys_pattern",
    "unknown_gpu", "unknown_model", "gpu_memory_mixed", "gpu_memory_smaller", "calibration_other_engine",
    "calibration_other_training", "calibration_outdated", "reward_model_starts_over", "mix_not_positive",
    "grpo_reward_unknown", "grpo_cached_data", "grpo_assumed", "extra_not_estimated", "liger_keeps_logits",
    "liger_loss_replaced",
}  # fmt: skip
"""Which GPU or model was meant, whether to measure anew, whether a restart from step 0 is acceptable, shares, where
rewards and prompts are, keys of the model's config.json, and nothing where a note only informs."""
