"""LLaMA-Factory on Megatron-Core: `USE_MCA=1` selects mcore_adapter, whose own keys carry the parallel plan.

Keys and defaults: mcore_adapter 0.10.0.dev0, src/mcore_adapter/training_args.py
(https://github.com/alibaba/ROLL/tree/8eb27cc2dc34c4d1310b169d9b86d339004d811a/mcore_adapter). Its argument class is
transformers' plain one, so the keys that LLaMA-Factory itself adds to the Hugging Face trainer are unknown here.
"""

from backend.engines.engine import Engine, Target
from backend.engines.llamafactory import OWNED, common_config, cpu_config, precision, resume
from backend.engines.megatron_keys import PARALLEL_KEYS
from backend.job.problems import Problem


def megatron_config(target: Target, output_dir: str) -> dict[str, object]:
    """The keys of mcore_adapter's trainer. Switches that are off, as its own default is, are left out."""
    config = common_config(target, output_dir)
    config |= precision(target.job.training.precision)
    config |= _sizes(target) | _recompute(target) | _optimizer(target) | _fusions(target) | _experts(target)
    if target.on_cpu:
        config |= cpu_config(target) | {"transformer_impl": "local"}
        for key in _turned_off_on_cpu(target):
            config[key] = False
    return config


def _sizes(target: Target) -> dict[str, object]:
    parallel = target.job.parallel
    config: dict[str, object] = {
        "tensor_model_parallel_size": parallel.tensor,
        "pipeline_model_parallel_size": parallel.pipeline,
    }
    if parallel.virtual_pipeline > 1:
        config["virtual_pipeline_model_parallel_size"] = parallel.virtual_pipeline
    if parallel.context > 1:
        config["context_parallel_size"] = parallel.context
    switches = {
        "sequence_parallel": target.job.sequence_parallel,
        "account_for_embedding_in_pipeline_split": parallel.account_for_embedding,
        "account_for_loss_in_pipeline_split": parallel.account_for_loss,
    }
    return config | _switched_on(switches)


def _recompute(target: Target) -> dict[str, object]:
    parallel, granularity = target.job.parallel, target.job.recompute
    if granularity == "none":
        return {}
    config: dict[str, object] = {"recompute_granularity": granularity}
    if granularity == "selective" and parallel.recompute_modules:
        config["recompute_modules"] = ",".join(parallel.recompute_modules)
    # mcore_adapter takes `uniform` over single layers when neither is given, and refuses one without the other.
    if granularity == "full" and parallel.recompute_num_layers is not None:
        config |= {"recompute_method": "uniform", "recompute_num_layers": parallel.recompute_num_layers}
    return config


def _optimizer(target: Target) -> dict[str, object]:
    parallel = target.job.parallel
    config = _switched_on(
        {
            "use_distributed_optimizer": parallel.distributed_optimizer,
            "overlap_grad_reduce": parallel.overlap_grad_reduce,
            "overlap_param_gather": parallel.overlap_param_gather,
            # With bf16 mcore_adapter sets it itself.
            "accumulate_allreduce_grads_in_fp32": parallel.gradient_dtype == "fp32"
            and target.job.training.precision == "fp16",
        }
    )
    if parallel.optimizer_offload_fraction > 0:
        config |= {
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": parallel.optimizer_offload_fraction,
        }
    return config


def _fusions(target: Target) -> dict[str, object]:
    parallel = target.job.parallel
    return _switched_on(
        {
            "bias_activation_fusion": parallel.bias_activation_fusion,
            "apply_rope_fusion": parallel.rope_fusion,
            "cross_entropy_loss_fusion": parallel.cross_entropy_fusion,
        }
    )


def _experts(target: Target) -> dict[str, object]:
    if not target.shape.experts:
        return {}
    parallel = target.job.parallel
    return {
        "expert_model_parallel_size": parallel.expert,
        # Left out it would be TP, whatever mcore_adapter's help says.
        "expert_tensor_parallel_size": parallel.expert_tensor,
        "moe_token_dispatcher_type": parallel.moe_token_dispatcher,
        "moe_grouped_gemm": parallel.moe_grouped_gemm,
    }


def _turned_off_on_cpu(target: Target) -> tuple[str, ...]:
    """The switches of the job that Megatron-Core's plain modules refuse without a GPU."""
    parallel = target.job.parallel
    switches = {
        "sequence_parallel": target.job.sequence_parallel,
        "bias_activation_fusion": parallel.bias_activation_fusion,
        "apply_rope_fusion": parallel.rope_fusion,
        "moe_grouped_gemm": bool(target.shape.experts) and parallel.moe_grouped_gemm,
    }
    return tuple(key for key, on in switches.items() if on)


def _notes(target: Target) -> tuple[Problem, ...]:
    if not target.on_cpu or not (keys := _turned_off_on_cpu(target)):
        return ()
    return (Problem(code="off_on_cpu", field="cluster.gpu", severity="note", values={"keys": ", ".join(keys)}),)


def _switched_on(switches: dict[str, bool]) -> dict[str, object]:
    return {key: True for key, on in switches.items() if on}


ENGINE = Engine(
    name="llamafactory-megatron",
    config=megatron_config,
    # One hardware queue: kernels then start in the order in which Megatron issues them, which its overlap of tensor
    # parallel communication relies on.
    environment=lambda target: {"USE_MCA": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    owned={**OWNED, **PARALLEL_KEYS, "transformer_impl": "cluster.gpu"},
    notes=_notes,
    resume=resume,
)
