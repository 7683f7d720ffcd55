"""Keys of a parallel plan that mcore_adapter and ms-swift share: Megatron-Core's names, with their job paths."""

from collections.abc import Mapping

PARALLEL_KEYS: Mapping[str, str] = {
    "tensor_model_parallel_size": "parallel.tensor",
    "pipeline_model_parallel_size": "parallel.pipeline",
    "virtual_pipeline_model_parallel_size": "parallel.virtual_pipeline",
    "context_parallel_size": "parallel.context",
    "expert_model_parallel_size": "parallel.expert",
    "expert_tensor_parallel_size": "parallel.expert_tensor",
    "sequence_parallel": "parallel.sequence",
    "account_for_embedding_in_pipeline_split": "parallel.account_for_embedding",
    "account_for_loss_in_pipeline_split": "parallel.account_for_loss",
    "recompute_granularity": "parallel.recompute",
    "recompute_modules": "parallel.recompute_modules",
    "recompute_method": "parallel.recompute_num_layers",
    "recompute_num_layers": "parallel.recompute_num_layers",
    "use_distributed_optimizer": "parallel.distributed_optimizer",
    "optimizer_cpu_offload": "parallel.optimizer_offload_fraction",
    "optimizer_offload_fraction": "parallel.optimizer_offload_fraction",
    "accumulate_allreduce_grads_in_fp32": "parallel.gradient_dtype",
    "overlap_grad_reduce": "parallel.overlap_grad_reduce",
    "overlap_param_gather": "parallel.overlap_param_gather",
    "bias_activation_fusion": "parallel.bias_activation_fusion",
    "apply_rope_fusion": "parallel.rope_fusion",
    "cross_entropy_loss_fusion": "parallel.cross_entropy_fusion",
    "moe_grouped_gemm": "parallel.moe_grouped_gemm",
    "moe_token_dispatcher_type": "parallel.moe_token_dispatcher",
}
