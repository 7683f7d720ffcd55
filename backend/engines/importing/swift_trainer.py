"""Keys of ms-swift's Hugging Face trainers: the inverse of backend/engines/swift_trainer.py.

Sources: ms-swift 4.6.0 swift/arguments and swift/trainers/arguments.py; names of 3.x: its docs of version 3.12.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from backend.engines.importing.choose import Choice, ReadFile, sharded_by
from backend.engines.importing.readers import (
    Read,
    Reader,
    read_checkpointing,
    read_evaluation_batch,
    read_ratio,
    read_steps,
    read_warmup_steps,
)
from backend.engines.importing.report import because, refused
from backend.engines.importing.swift import SWIFT, read_rate, read_swift_precision, refuse_other
from backend.job.patterns import NODE_PATH

_KINDS = ("dpo", "kto", "rm", "orpo", "simpo", "grpo")
_OWN_LOSSES = ("orpo", "simpo")
_STOCK: Mapping[str, Mapping[str, Any]] = {
    "zero0": {"stage": 0},
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "zero2_offload": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "zero3": {"stage": 3},
    "zero3_offload": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
}
"""What the files of swift/config shard and offload, by the names that `deepspeed` takes."""


def refuse_other_trainers(config: Mapping[str, Any], verb: str) -> None:
    """Raise ProblemsError if the engine cannot train it: other kinds of RLHF, tasks, tuners and quantizations.

    GRPO with a server of its own for the rollouts is refused too: a job starts one gang. So is a sum of several losses.
    """
    refuse_other(config, verb, _KINDS, tuner="lora")
    if config.get("rlhf_type") == "grpo" and config.get("vllm_mode") == "server":
        raise refused("import_vllm_server", "vllm_mode")
    losses = config.get("loss_type")
    if isinstance(losses, list | tuple) and len(losses) > 1:
        raise refused("import_swift_losses", "loss_type", losses=", ".join(map(str, losses)))


def trainer_choice(config: Mapping[str, Any], verb: str, read_file: ReadFile | None) -> Choice:
    """Return the engine that shards as the configuration does, and the values that the command decides."""
    command = verb or ("rlhf" if "rlhf_type" in config else "sft")
    kind = str(config.get("rlhf_type", "dpo")) if command == "rlhf" else command
    values: dict[str, Any] = {"training.stage": "dpo" if kind in _OWN_LOSSES else kind}
    if kind in _OWN_LOSSES:
        values["training.dpo.loss"] = kind
    choice = _sharding(config, read_file)
    return replace(choice, values={**choice.values, **values})


def _sharding(config: Mapping[str, Any], read_file: ReadFile | None) -> Choice:
    sharding = config.get("deepspeed")
    if isinstance(sharding, str) and sharding in _STOCK:
        sharding = {"zero_optimization": _STOCK[sharding]}
    if sharding:
        return sharded_by(sharding, read_file, "swift")
    if fsdp := config.get("fsdp"):
        settings = _fsdp_settings(fsdp, read_file)
        is_first = str((settings.get("fsdp_config") or {}).get("fsdp_version", 2)) == "1"
        reasons = {"fsdp": because("import_fsdp_first", "fsdp")} if is_first else {}
        return Choice(engine="swift-fsdp", values=_fsdp_values(settings), reasons=reasons)
    return Choice(engine="swift-ddp")


def _fsdp_settings(fsdp: Any, read_file: ReadFile | None) -> Mapping[str, Any]:
    """Return the content of an FSDP file. ms-swift's own file, `fsdp2`, has the defaults."""
    settings = fsdp if isinstance(fsdp, Mapping) else read_file(str(fsdp)) if read_file and fsdp != "fsdp2" else None
    return settings or {}


def _fsdp_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an FSDP file."""
    options = settings.get("fsdp_config") or {}
    return {
        "parallel.fsdp.version": 2,
        "parallel.fsdp.offload": "offload" in str(settings.get("fsdp", "")),
        "parallel.fsdp.reshard_after_forward": bool(options.get("reshard_after_forward", True)),
        "parallel.recompute": "full" if options.get("activation_checkpointing", True) else "none",
    }


def _method(config: Mapping[str, Any], value: Any) -> Read:
    """Read the method. A model of 4 bits with adapters is QLoRA."""
    if config.get("quant_method") == "bnb":
        return Read(values={"training.method": "qlora"})
    return Read(values={"training.method": value or "lora"})


def _weights(config: Mapping[str, Any], value: Any) -> Read:
    """Read the precision, and say so where the weights get another: full training under DDP and FSDP has fp32."""
    read = read_swift_precision(config, value)
    is_stepped = config.get("tuner_type", "lora") == "full" and not config.get("deepspeed")
    if value in (None, "float32") or not is_stepped or read.reason:
        return read
    return Read(values=read.values, reason=because("import_swift_weights", "torch_dtype", dtype=value))


def _accumulation(config: Mapping[str, Any], value: Any) -> Read:
    """Read the accumulation. ms-swift takes 16 samples a step if it is missing (trainers/arguments.py), and in GRPO one
    micro-batch (arguments/rlhf_args.py _set_default)."""
    if value is None and _is_grpo(config):
        value = 1
    if value is None:
        # The number of ranks is not known here; a single one has this number.
        value = ceil(16 / int(config.get("per_device_train_batch_size") or 1))
    return Read(values={"training.gradient_accumulation_steps": value})


def _evaluation(config: Mapping[str, Any], value: Any) -> Read:
    """Read an interval in steps. ms-swift evaluates at every save, if there is data for it."""
    has_data = config.get("split_dataset_ratio") or config.get("val_dataset")
    if not has_data or value == "no":
        return Read(values={"training.eval_steps": None})
    if (value or config.get("save_strategy")) == "epoch":
        return Read(reason=because("import_eval_epoch", "eval_strategy"))
    return Read(values={"training.eval_steps": config.get("eval_steps") or config.get("save_steps", 500)})


def _evaluation_steps(config: Mapping[str, Any], value: Any) -> Read:
    read = _evaluation(config, config.get("eval_strategy"))
    if value is None or read.reason or read.values.get("training.eval_steps") == value:
        return read
    return Read(values=read.values, reason=because("import_swift_no_eval", "eval_steps"))


def _workers(config: Mapping[str, Any], value: Any) -> Read:
    return Read(values={"training.workers.data_loader": 1 if value is None else value})


def _bits(config: Mapping[str, Any], value: Any) -> Read:
    return Read(values={"training.method": "qlora"} if config.get("quant_method") == "bnb" else {})


def _is_grpo(config: Mapping[str, Any]) -> bool:
    return config.get("rlhf_type") == "grpo"


def _beta(config: Mapping[str, Any], value: Any) -> Read:
    """Read beta, whose default depends on the kind (arguments/rlhf_args.py _init_grpo, _init_simpo, _set_default)."""
    if _is_grpo(config):
        return Read(values={"training.grpo.beta": 0.04 if value is None else value})
    default = 2.0 if config.get("rlhf_type") == "simpo" else 0.1
    return Read(values={"training.dpo.beta": default if value is None else value})


def _loss(config: Mapping[str, Any], value: Any) -> Read:
    """Read the loss. The job has a field for that of DPO only."""
    if _is_grpo(config):
        return Read(values={} if value is None else {"extra.loss_type": value})
    return Read(values={} if value is None else {"training.dpo.loss": value})


def _rewards(config: Mapping[str, Any], value: Any) -> Read:
    names = value if isinstance(value, list | tuple) else [value] if value else []
    return Read(values={"training.grpo.rewards": ",".join(map(str, names)) or None})


def _plugin(config: Mapping[str, Any], value: Any) -> Read:
    """Read the file of reward functions. The job has one, with a whole path; other stages pass the files on."""
    files = value if isinstance(value, list | tuple) else [value] if value else []
    if len(files) == 1 and re.fullmatch(NODE_PATH, str(files[0])):
        return Read(values={"training.grpo.plugin": str(files[0])})
    if not files:
        return Read(values={"training.grpo.plugin": None})
    return Read(reason=because("import_plugin", "external_plugins", files=", ".join(map(str, files))))


def _rollout(config: Mapping[str, Any], value: Any) -> Read:
    return Read(values={"training.grpo.rollout": "vllm" if config.get("use_vllm") else "transformers"})


def _sleep(config: Mapping[str, Any], value: Any) -> Read:
    """Read whether vLLM sleeps. Level 2 also discards its weights, which the job does not have."""
    reason = because("import_sleep_level", "sleep_level") if value == 2 else None
    return Read(values={"training.grpo.vllm_sleep": bool(value)}, reason=reason)


_OF_MEGATRON = frozenset({"lr", "lr_decay_style", "min_lr", "train_iters", "lr_warmup_fraction", "lr_warmup_iters"})
_OF_TRAINERS: dict[str, Reader] = {
    "tuner_type": _method,
    "quant_method": _bits,
    "quant_bits": _bits,
    "torch_dtype": _weights,
    "learning_rate": lambda config, value: read_rate(config, value, "lora"),
    "max_steps": read_steps,
    "num_train_epochs": lambda config, value: Read(values={"training.num_train_epochs": value or 3.0}),
    "gradient_accumulation_steps": _accumulation,
    "warmup_ratio": read_ratio,
    "warmup_steps": read_warmup_steps,
    "eval_strategy": _evaluation,
    "eval_steps": _evaluation_steps,
    "per_device_eval_batch_size": read_evaluation_batch,
    "gradient_checkpointing": lambda config, value: (
        Read() if config.get("fsdp") else read_checkpointing(config, True) if value is not False
        else Read(values={"parallel.recompute": "none"})
    ),
    "dataloader_num_workers": _workers,
    "beta": _beta,
    "loss_type": _loss,
    "reward_funcs": _rewards,
    "external_plugins": _plugin,
    "use_vllm": _rollout,
    "vllm_mode": _rollout,
    "sleep_level": _sleep,
}  # fmt: skip

SWIFT_TRAINER = replace(
    SWIFT,
    readers={key: reader for key, reader in SWIFT.readers.items() if key not in _OF_MEGATRON} | _OF_TRAINERS,
    renamed={
        # 3.x (docs/source_en/Instruction/Command-line-parameters.md), and transformers before 4.46
        "train_type": "tuner_type",
        "sft_type": "tuner_type",
        "evaluation_strategy": "eval_strategy",
        "custom_register_path": "external_plugins",
    },
    always=frozenset(
        {
            *("add_version", "callbacks", "rlhf_type", "check_model", "use_cpu", "ddp_backend"),
            *("include_num_input_tokens_seen", "logging_nan_inf_filter"),
        }
    ),
    passed_on=SWIFT.passed_on | {"attn_impl", "lr_scheduler_kwargs"},
    dropped=(
        ("resume_from_checkpoint|resume_only_model|adapters|ref_adapters", "import_resume"),
        ("overwrite_output_dir", "import_own_folder"),
        ("predict_with_generate", "import_predicts"),
        ("device_map|max_memory|sequence_parallel_size|deepspeed_autotp_size|use_ray|ray_.*", "import_launcher"),
    ),
)
