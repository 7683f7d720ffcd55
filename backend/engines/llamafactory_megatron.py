"""LLaMA-Factory on Megatron-Core: `USE_MCA=1` selects mcore_adapter, whose own keys carry the parallel plan.

Keys and defaults: mcore_adapter 0.10.0.dev0, src/mcore_adapter/training_args.py
(https://github.com/alibaba/ROLL/tree/8eb27cc2dc34c4d1310b169d9b86d339004d811a/mcore_adapter). Its argument class
extends that of transformers. So the keys that LLaMA-Factory adds to the Hugging Face trainer are unknown here.
"""

from backend.engines.engine import Engine, Target
from backend.engines.keys import EXPERTS, carried, key_of, layout_key, owned_keys
from backend.engines.llamafactory import common_config, cpu_config, precision, resume
from backend.job.problems import Problem


def megatron_config(target: Target, output_dir: str) -> dict[str, object]:
    """Return the keys of mcore_adapter's trainer, without switches that are off like its own default."""
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
    config = _carried(target, "parallel.tensor", "parallel.pipeline")
    if parallel.virtual_pipeline > 1:
        config |= _carried(target, "parallel.virtual_pipeline")
    if parallel.context > 1:
        config |= _carried(target, "parallel.context")
    config |= layout_key(target.job, "mcore_adapter")
    config |= {key_of("parallel.sequence", "mcore_adapter"): True} if target.job.sequence_parallel else {}
    return config | _switched_on(target, "parallel.account_for_embedding", "parallel.account_for_loss")


def _recompute(target: Target) -> dict[str, object]:
    parallel, granularity = target.job.parallel, target.job.recompute
    if granularity == "none":
        return {}
    config: dict[str, object] = {"recompute_granularity": granularity}
    if granularity == "selective" and parallel.recompute_modules:
        config["recompute_modules"] = ",".join(parallel.recompute_modules)
    # mcore_adapter takes `uniform` over single layers if neither is given, and refuses one without the other.
    if granularity == "full" and parallel.recompute_num_layers is not None:
        config |= {"recompute_method": "uniform", "recompute_num_layers": parallel.recompute_num_layers}
    return config


def _optimizer(target: Target) -> dict[str, object]:
    parallel, precision = target.job.parallel, target.job.training.precision
    config = _switched_on(
        target, "parallel.distributed_optimizer", "parallel.overlap_grad_reduce", "parallel.overlap_param_gather"
    )
    # With bf16 mcore_adapter sets it itself.
    if parallel.gradient_dtype == "fp32" and precision == "fp16":
        config["accumulate_allreduce_grads_in_fp32"] = True
    if parallel.optimizer_offload_fraction > 0:
        config |= {"optimizer_cpu_offload": True, **_carried(target, "parallel.optimizer_offload_fraction")}
    return config


def _fusions(target: Target) -> dict[str, object]:
    return _switched_on(
        target, "parallel.bias_activation_fusion", "parallel.rope_fusion", "parallel.cross_entropy_fusion"
    )


def _experts(target: Target) -> dict[str, object]:
    if not target.has_experts:
        # mcore_adapter also checks the dispatcher of dense models, and its default conflicts with this key.
        varies = target.job.extra.get("variable_seq_lengths")
        return _carried(target, "parallel.moe_token_dispatcher") if varies else {}
    # A missing ETP would be TP, whatever mcore_adapter's help says.
    return _carried(target, *EXPERTS)


def _turned_off_on_cpu(target: Target) -> tuple[str, ...]:
    """Return the job's switches that Megatron-Core's plain modules refuse without a GPU."""
    parallel = target.job.parallel
    switches = {
        "parallel.sequence": target.job.sequence_parallel,
        "parallel.bias_activation_fusion": parallel.bias_activation_fusion,
        "parallel.rope_fusion": parallel.rope_fusion,
        "parallel.moe_grouped_gemm": target.has_experts and parallel.moe_grouped_gemm,
    }
    return tuple(key_of(path, "mcore_adapter") for path, on in switches.items() if on)


def _notes(target: Target) -> tuple[Problem, ...]:
    notes = []
    if target.on_cpu and (keys := _turned_off_on_cpu(target)):
        values = {"keys": ", ".join(keys)}
        notes.append(Problem(code="off_on_cpu", field="cluster.gpu", severity="note", values=values))
    parallel = target.job.parallel
    if target.has_experts and parallel.expert_tensor != parallel.tensor:
        # mcore_adapter training_args.py MegatronArguments.__post_init__
        sizes = {"tensor": parallel.tensor, "expert_tensor": parallel.expert_tensor}
        notes.append(
            Problem(code="checkpoint_torch_dist", field="parallel.expert_tensor", severity="note", values=sizes)
        )
    return tuple(notes)


def _carried(target: Target, *paths: str) -> dict[str, object]:
    return carried(target.job, "mcore_adapter", *paths)


def _switched_on(target: Target, *paths: str) -> dict[str, object]:
    return {key: on for key, on in _carried(target, *paths).items() if on}


ENGINE = Engine(
    name="llamafactory-megatron",
    config=megatron_config,
    # With one hardware queue, kernels start in the order in which Megatron issues them. Its overlap of tensor
    # parallel communication needs this order.
    environment=lambda target: {"USE_MCA": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    owned=owned_keys("llamafactory", "mcore_adapter"),
    notes=_notes,
    resume=resume,
)
