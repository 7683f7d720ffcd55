"""ms-swift's Hugging Face trainers: `swift sft|pt|rlhf` under plain DDP, DeepSpeed ZeRO or FSDP 2.

Keys and defaults: ms-swift 4.6.0 swift/arguments/*.py and swift/trainers/arguments.py, as in the wheel on PyPI. Its
command starts torchrun if NPROC_PER_NODE or NNODES is set (swift/cli/main.py). What the job file has no key for stays
ms-swift's own: adam_beta2 is 0.95 and lora_dropout 0.05, where LLaMA-Factory has 0.999 and 0.
"""

import json
from collections.abc import Mapping

from backend.engines.engine import Engine, Target
from backend.engines.keys import DTYPES, carried, owned_keys
from backend.engines.llamafactory import cpu_config, lowest_rate, precision
from backend.engines.llamafactory_zero import DEEPSPEED, deepspeed_config
from backend.engines.swift import (
    data_config,
    data_names,
    method_config,
    records_config,
    swift_command,
    swift_notes,
)
from backend.job.traits import TRAITS

FSDP = "fsdp.json"
"""File in the folder of config.yaml, which names it without a folder: the ranks start there."""
_SCHEDULE = ("training.learning_rate", "training.lr_scheduler")
_GRPO = tuple(f"training.grpo.{name}" for name in ("group_size", "completion_len", "temperature", "beta", "epsilon"))


def swift_trainer_config(target: Target, output_dir: str) -> dict[str, object]:
    """Return the arguments of `swift sft|pt|rlhf`."""
    config = method_config(target) | _grpo(target) | _quantization(target) | data_config(target) | _precision(target)
    config |= _schedule(target) | records_config(target, output_dir) | _records(target)
    return config | _sharding(target) | cpu_config(target)


def _grpo(target: Target) -> dict[str, object]:
    """Return the rewards, and how completions are generated."""
    grpo = target.job.training.grpo
    if target.job.training.stage != "grpo":
        return {}
    config: dict[str, object] = {"reward_funcs": data_names(grpo.rewards)}
    if grpo.plugin:
        config["external_plugins"] = [grpo.plugin]
    config |= carried(target.job, "swift_trainer", *_GRPO)
    if grpo.rollout == "transformers":
        return config | {"use_vllm": False}
    # Level 1 moves vLLM's weights to the host and frees its cache (docs of vLLM: sleep mode).
    config |= {"use_vllm": True, "vllm_mode": "colocate", "sleep_level": int(grpo.vllm_sleep)}
    return config | carried(target.job, "swift_trainer", "training.grpo.vllm_memory")


def _quantization(target: Target) -> dict[str, object]:
    return {"quant_method": "bnb", "quant_bits": 4} if target.job.training.method == "qlora" else {}


def _precision(target: Target) -> dict[str, object]:
    """Return the precision, and that of the weights.

    torch's AdamW steps the weights themselves, so in 16 bits small updates are lost: full training gets fp32 weights
    under DDP and FSDP. DeepSpeed has its own fp32 copies, PEFT keeps adapters in fp32.
    """
    job = target.job
    is_stepped = job.training.method == "full" and not job.traits.zero_stage
    dtype = DTYPES["fp32" if is_stepped else job.training.precision]
    return {"torch_dtype": dtype, **precision(job.training.precision)}


def _schedule(target: Target) -> dict[str, object]:
    job, training = target.job, target.job.training
    config: dict[str, object] = {
        "per_device_train_batch_size": training.micro_batch_size,
        "gradient_accumulation_steps": job.accumulation,
    }
    if training.max_steps is None:
        config["num_train_epochs"] = training.num_train_epochs
    else:
        config["max_steps"] = training.max_steps
    config |= carried(job, "swift_trainer", *_SCHEDULE)
    if training.lr_scheduler == "cosine_with_min_lr":
        config["lr_scheduler_kwargs"] = {"min_lr": lowest_rate(training.learning_rate)}
    config |= {"warmup_ratio": training.warmup_ratio} if training.warmup_ratio > 0 else {}
    return config | carried(job, "swift", "training.weight_decay", "training.seed")


def _records(target: Target) -> dict[str, object]:
    training = target.job.training
    config: dict[str, object] = {
        # Otherwise it asks the hub whether the model's folder is the newest.
        "check_model": False,
        # The first key makes the trainer count tokens. GRPO's batches have no input that it could count; it warns in
        # every micro-batch. The second key logs a NaN loss as NaN.
        "include_num_input_tokens_seen": training.stage != "grpo",
        "logging_nan_inf_filter": False,
        "report_to": list(training.report_to) or ["none"],
    }
    if training.eval_steps is None:
        # It would split off data for evaluation only with a size, but evaluate at every save.
        return config | {"eval_strategy": "no"}
    return config | {"eval_strategy": "steps", "per_device_eval_batch_size": training.micro_batch_size}


def _sharding(target: Target) -> dict[str, object]:
    job = target.job
    checkpoints = job.recompute != "none"
    config: dict[str, object] = {"use_liger_kernel": True} if job.training.liger else {}
    # Its packing asks for a flash attention by name (arguments/sft_args.py _check_padding_free).
    config |= {"attn_impl": "flash_attn"} if job.training.packing else {}
    if job.traits.is_fsdp:
        return config | {"fsdp": FSDP, "gradient_checkpointing": False}
    sharding = {"deepspeed": DEEPSPEED} if job.traits.zero_stage else {}
    return config | {"gradient_checkpointing": checkpoints} | sharding


def fsdp_config(target: Target) -> dict[str, object]:
    """Return ms-swift's own configuration of FSDP 2 with the job's options (swift/config/fsdp2.json)."""
    fsdp = target.job.parallel.fsdp
    return {
        "fsdp": "full_shard auto_wrap offload" if fsdp.offload else "full_shard auto_wrap",
        "fsdp_config": {
            "fsdp_version": 2,
            "reshard_after_forward": fsdp.reshard_after_forward,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "cpu_ram_efficient_loading": True,
            # Checkpoints that every program can read.
            "state_dict_type": "FULL_STATE_DICT",
            "activation_checkpointing": target.job.recompute != "none",
        },
    }


def _files(target: Target) -> Mapping[str, str]:
    if target.job.traits.zero_stage:
        return {DEEPSPEED: json.dumps(deepspeed_config(target), indent=2) + "\n"}
    return {FSDP: json.dumps(fsdp_config(target), indent=2) + "\n"} if target.job.traits.is_fsdp else {}


def _config(target: Target, output_dir: str) -> dict[str, object]:
    config = swift_trainer_config(target, output_dir)
    if target.job.traits.zero_stage:
        # With it accelerate omits DeepSpeed (1.11.0 state.py), and DeepSpeed then treats each rank as a separate world.
        config.pop("use_cpu", None)
    return config


def _resume(target: Target, checkpoint: str) -> dict[str, object]:
    return {"resume_from_checkpoint": checkpoint}


ENGINES = tuple(
    Engine(
        name=traits.engine,
        config=_config,
        # Our programs on the node read the command from it.
        environment=lambda target: {"MEGABOARD_TRAINER": f"swift_trainer-{swift_command(target)}"},
        owned={**owned_keys("swift", "swift_trainer"), "deepspeed": "engine", "fsdp": "engine"},
        notes=swift_notes,
        resume=_resume,
        files=_files,
        plain=lambda target: f"swift.cli.main {swift_command(target)} config.yaml",
    )
    for traits in TRAITS.values()
    if traits.environment == "swift" and not traits.is_megatron
)
