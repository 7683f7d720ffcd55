"""ms-swift's Megatron: `megatron sft|pt|rlhf`, which trains the models that mcore-bridge knows, LoRA included.

Keys and defaults: ms-swift 4.6.0 swift/megatron/arguments/*.py, as in the wheel on PyPI. Its command line reads the
same config.yaml (swift/cli/main.py parse_yaml_args). A test checks that its argument classes accept what is written
here. Training itself needs Transformer Engine and GPUs, and was not run by the authors.
"""

import math
from collections.abc import Mapping

from backend.engines.engine import Engine, Target
from backend.engines.keys import DTYPES, EXPERTS, carried, layout_key, owned_keys
from backend.engines.llamafactory import lowest_rate, precision
from backend.engines.swift import data_config, method_config, records_config, swift_command, swift_notes
from backend.job.problems import Problem

SCHEDULERS: Mapping[str, str] = {
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "linear": "linear",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "inverse_sqrt": "inverse-square-root",
}
_REPORTS = frozenset({"tensorboard", "wandb", "swanlab"})
_FEWEST_KEPT = 2
"""Minimum that ms-swift accepts: it refuses a save_total_limit of 1."""


def swift_config(target: Target, output_dir: str) -> dict[str, object]:
    """Return the arguments of `megatron sft|pt|rlhf`."""
    config = method_config(target) | data_config(target) | _schedule(target)
    config |= _records(target, output_dir)
    return config | _plan(target) | _memory(target) | _switches(target) | _experts(target)


def _schedule(target: Target) -> dict[str, object]:
    job, training = target.job, target.job.training
    config: dict[str, object] = {
        "torch_dtype": DTYPES[training.precision],
        # Without them ms-swift trains fp16 if torch_dtype is float32 (arguments/base_args/model_args.py).
        **precision(training.precision),
        "micro_batch_size": training.micro_batch_size,
        "global_batch_size": job.global_batch,
    }
    if training.max_steps is None:
        config["num_train_epochs"] = math.ceil(training.num_train_epochs)
    else:
        config["train_iters"] = training.max_steps
    config |= {"lr": training.learning_rate, "lr_decay_style": SCHEDULERS[training.lr_scheduler]}
    if training.lr_scheduler == "cosine_with_min_lr":
        config["min_lr"] = lowest_rate(training.learning_rate)
    config |= {"lr_warmup_fraction": training.warmup_ratio} if training.warmup_ratio > 0 else {}
    return config | {"weight_decay": training.weight_decay, "seed": training.seed}


def _records(target: Target, output_dir: str) -> dict[str, object]:
    training, config = target.job.training, records_config(target, output_dir)
    if training.save_total_limit is not None:
        config["save_total_limit"] = max(_FEWEST_KEPT, training.save_total_limit)
    reports = [name for name in training.report_to if name in _REPORTS]
    return config | ({"report_to": reports} if reports else {})


def _plan(target: Target) -> dict[str, object]:
    config = _carried(target, "parallel.tensor", "parallel.pipeline", "parallel.context")
    config["sequence_parallel"] = target.job.sequence_parallel
    config |= _carried(target, "parallel.account_for_embedding", "parallel.account_for_loss")
    if target.job.parallel.virtual_pipeline > 1:
        config |= _carried(target, "parallel.virtual_pipeline")
    return config | layout_key(target.job, "swift_megatron")


def _memory(target: Target) -> dict[str, object]:
    parallel, granularity = target.job.parallel, target.job.recompute
    # Its own default is selective.
    config: dict[str, object] = {"recompute_granularity": granularity}
    if granularity == "selective" and parallel.recompute_modules:
        config["recompute_modules"] = list(parallel.recompute_modules)
    if granularity == "full":
        config |= {"recompute_method": "uniform", "recompute_num_layers": parallel.recompute_num_layers or 1}
    if parallel.optimizer_offload_fraction > 0:
        config |= {"optimizer_cpu_offload": True, **_carried(target, "parallel.optimizer_offload_fraction")}
    return config


def _switches(target: Target) -> dict[str, object]:
    config = _carried(target, "parallel.distributed_optimizer")
    config["accumulate_allreduce_grads_in_fp32"] = target.job.parallel.gradient_dtype == "fp32"
    return config | _carried(
        target,
        "parallel.overlap_grad_reduce",
        "parallel.overlap_param_gather",
        "parallel.bias_activation_fusion",
        "parallel.rope_fusion",
        "parallel.cross_entropy_fusion",
    )


def _experts(target: Target) -> dict[str, object]:
    return _carried(target, *EXPERTS) if target.has_experts else {}


def _carried(target: Target, *paths: str) -> dict[str, object]:
    return carried(target.job, "swift_megatron", *paths)


def _environment(target: Target) -> Mapping[str, str]:
    # ms-swift's own launcher sets the first one. Our programs on the node read the command and the number of ranks from
    # the others, because a preflight has a single rank.
    variables = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "MEGABOARD_TRAINER": f"swift-{swift_command(target)}"}
    return variables | {"MEGABOARD_WORLD_SIZE": str(target.job.world_size)}


def _resume(target: Target, checkpoint: str) -> dict[str, object]:
    """Return the keys to load weights, optimizer, random state and step.

    With `finetune`, the default, ms-swift loads only the weights and starts from step 0. A checkpoint of adapters holds
    only these: `model` gives the model under them, as at the start. Source: swift/megatron/trainers/base.py
    (_load_checkpoint, _prepare_peft_model).
    """
    kind = "mcore_model" if target.job.training.method == "full" else "mcore_adapter"
    return {kind: checkpoint, "finetune": False}


def _notes(target: Target) -> tuple[Problem, ...]:
    """Return notes on where ms-swift's Megatron differs from the job."""
    training = target.job.training
    differences: list[tuple[str, str, dict[str, object]]] = []
    if training.max_steps is None and training.num_train_epochs % 1:
        epochs = math.ceil(training.num_train_epochs)
        differences.append(("swift_whole_epochs", "training.num_train_epochs", {"epochs": epochs}))
    if training.save_total_limit == 1:
        differences.append(("swift_keeps_two", "training.save_total_limit", {}))
    if dropped := [name for name in training.report_to if name not in _REPORTS]:
        differences.append(("swift_reports", "training.report_to", {"names": ", ".join(dropped)}))
    notes = (Problem(code=code, field=field, severity="note", values=values) for code, field, values in differences)
    return (*swift_notes(target), *notes)


ENGINE = Engine(
    name="swift-megatron",
    config=swift_config,
    environment=_environment,
    owned=owned_keys("swift", "swift_megatron"),
    notes=_notes,
    resume=_resume,
    plain=lambda target: f"swift.cli._megatron.main {swift_command(target)} config.yaml",
)
