"""Keys that ms-swift 4.6.0 takes for preference training and GRPO alone.

They are the fields of RLHFArguments that SftArguments does not have (swift/arguments), without those that a field of
the job decides: engines/checks.py refuses these in every stage. `swift sft` and `pt` end with `remaining_argv`.
"""

RLHF_KEYS = frozenset({
    "advantage_estimator", "advantage_reweight", "async_generate", "center_rewards_coefficient",
    "chord_enable_phi_function", "chord_mu_decay_steps", "chord_mu_peak", "chord_mu_valley",
    "chord_mu_warmup_steps", "chord_sft_dataset", "chord_sft_per_device_train_batch_size", "cliprange",
    "cliprange_value", "completion_length_limit_scope", "cosine_max_len", "cosine_max_len_value_correct",
    "cosine_max_len_value_wrong", "cosine_min_len_value_correct", "cosine_min_len_value_wrong", "cpo_alpha",
    "delta", "desirable_weight", "discopop_tau", "dynamic_sample", "enable_flattened_weight_sync",
    "epsilon_high", "fipo_clip_high_only", "fipo_clip_range", "fipo_decay_rate", "fipo_safety_threshold", "gamma",
    "generation_batch_size", "gkd_logits_topk", "gym_env", "importance_sampling_level", "kl_coef", "kl_in_reward",
    "label_smoothing", "lam", "ld_alpha", "lmbda", "local_rollout_forward_batch_size", "log_completions",
    "log_entropy", "log_rollout_offpolicy_metrics", "loss_weights", "max_resample_times",
    "max_turns", "min_p", "missing_eos_penalty", "move_model_batches", "multi_turn_scheduler",
    "num_generations_eval", "num_iterations", "num_mini_batches", "num_ppo_epochs", "num_sample_generations",
    "off_policy_sequence_mask_delta", "offload_model", "offload_optimizer", "offload_teacher_model",
    "overlong_filter", "real_tau", "ref_adapters", "ref_model", "ref_model_mixup_alpha", "ref_model_revision",
    "ref_model_sync_steps", "ref_model_type", "repetition_max_penalty", "repetition_n_grams", "response_length",
    "reward_adapters", "reward_model", "reward_model_plugin", "reward_model_revision",
    "reward_model_type", "reward_template", "reward_weights", "rlsd_lambda", "rlsd_lambda_decay_steps",
    "rlsd_lambda_warmup_steps", "rlsd_negative_only", "rlsd_reweight_clip_range",
    "rollout_importance_sampling_mode", "rollout_importance_sampling_threshold", "rpo_alpha", "scale_rewards",
    "sdar_gate_beta", "sdar_loss_coef", "seq_kd", "sft_alpha", "simpo_gamma", "soft_cache_length",
    "soft_max_length", "steps_per_generation", "sync_ref_model", "tau_neg", "tau_pos", "teacher_adapters",
    "teacher_deepspeed", "teacher_kl_coef", "teacher_model", "teacher_model_revision", "teacher_model_server",
    "teacher_model_type", "teacher_tag_key", "top_entropy_quantile", "undesirable_weight", "use_gym_env",
    "vf_coef", "vllm_data_parallel_size", "vllm_disable_cascade_attn", "vllm_disable_custom_all_reduce",
    "vllm_enable_expert_parallel", "vllm_enable_lora", "vllm_enable_prefix_caching", "vllm_enforce_eager",
    "vllm_engine_kwargs", "vllm_limit_mm_per_prompt", "vllm_max_lora_rank",
    "vllm_max_model_len", "vllm_max_num_seqs", "vllm_mm_processor_cache_gb",
    "vllm_pipeline_parallel_size", "vllm_quantization", "vllm_reasoning_parser", "vllm_server_base_url",
    "vllm_server_group_port", "vllm_server_host", "vllm_server_pass_dataset", "vllm_server_port",
    "vllm_server_timeout", "vllm_speculative_config", "vllm_tensor_parallel_size", "vllm_use_async_engine",
    "wandb_log_unique_prompts", "whiten_rewards",
})  # fmt: skip
