"""Choice of the engine of a LLaMA-Factory configuration. Configurations that we cannot launch are refused."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.engines.importing.report import because, refused
from backend.engines.known_keys import programs
from backend.job.problems import Problem

ReadFile = Callable[[str], Mapping[str, Any] | None]
"""Return the mapping in a JSON or YAML file that a configuration names; None if the file is not available."""

_CPU = {"device": "cpu"}
_STOCK: Mapping[str, Mapping[str, Any]] = {
    "ds_z0_config.json": {"stage": 0},
    "ds_z2_config.json": {"stage": 2},
    "ds_z2_offload_config.json": {"stage": 2, "offload_optimizer": _CPU},
    "ds_z3_config.json": {"stage": 3},
    "ds_z3_offload_config.json": {"stage": 3, "offload_optimizer": _CPU, "offload_param": _CPU},
}
"""What LLaMA-Factory 0.9.5's examples/deepspeed shard and offload, by file name, for an import without files."""
_WRITTEN = frozenset(
    {
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
        "zero_allow_untested_optimizer", "fp16", "bf16", "zero_optimization", "_comment",
    }
)  # fmt: skip
"""Sections of a DeepSpeed configuration that Megaboard writes too."""
_BRIDGE = frozenset(
    {
        "mixed_precision", "use_packed_sequences", "megatron_pretrained_checkpoint", "export_hf_on_finish",
        "masked_softmax_fusion", "extra_config", "use_megatron_bridge",
    }
)  # fmt: skip
"""Keys of LLaMA-Factory's Megatron-Bridge trainer alone (main, src/llamafactory/hparams/megatron_bridge_args.py)."""
SECOND_TRAINER = frozenset({"train_dataset", "model_class", "dist_config", "kernel_config", "peft_config"})
"""Keys of LLaMA-Factory's second trainer (examples/v1)."""
_STAGES = frozenset({"pt", "sft", "rm", "dpo", "kto"})
_FSDP = re.compile(r"fsdp|FSDP_|ACCELERATE_USE_FSDP")
_SHARED_WITH_MEGATRON = frozenset({"fp8"})
"""Keys of mcore_adapter that LLaMA-Factory's own trainer has as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The engine of a configuration."""

    engine: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """Job path -> value: further values from the keys that choose the engine."""
    reasons: Mapping[str, Problem] = field(default_factory=dict)
    """Key -> why the engine differs from the file."""


def refuse_other_work(config: Mapping[str, Any]) -> None:
    """Raise ProblemsError if the configuration trains nothing, or if no engine can train it."""
    if "compute_environment" in config or "distributed_type" in config:
        raise refused("import_accelerate_file", "distributed_type")
    if config.keys() & SECOND_TRAINER and "model_name_or_path" not in config:
        raise refused("import_not_v0", "model")
    for name in ("use_kt", "USE_KT"):
        if _is_on(config.get(name)):
            raise refused("import_kt", name)
    if bridge := sorted(_BRIDGE & config.keys()) or ["USE_MEGATRON_BRIDGE"] * _is_on(config.get("USE_MEGATRON_BRIDGE")):
        raise refused("import_megatron_bridge", bridge[0])
    if not config.get("do_train", False):
        raise refused("import_no_training", "do_train")
    stage = str(config.get("stage", "sft"))
    if stage not in _STAGES:
        raise refused("import_stage", "stage", stage=stage)
    method = str(config.get("finetuning_type", "lora"))
    if method not in ("full", "freeze", "lora"):
        raise refused("import_method", "finetuning_type", method=method)


def choose_engine(config: Mapping[str, Any], read_file: ReadFile | None) -> Choice:
    """Return the engine that shards as the configuration does."""
    sharding = config.get("deepspeed")
    if _is_megatron(config):
        reasons = {key: because("import_sharding_with_megatron", key) for key in config if _FSDP.match(key)}
        if sharding:
            reasons["deepspeed"] = because("import_deepspeed_with_megatron", "deepspeed")
        return Choice(engine="llamafactory-megatron", reasons=reasons)
    if sharding:
        return sharded_by(sharding, read_file, "llamafactory")
    if config.get("fsdp") or _is_on(config.get("ACCELERATE_USE_FSDP")):
        return Choice(engine="llamafactory-fsdp", values=fsdp_values(config))
    return Choice(engine="llamafactory-ddp")


def _is_megatron(config: Mapping[str, Any]) -> bool:
    """Return whether the configuration has keys that only mcore_adapter knows, or its switch."""
    keys = programs()["mcore_adapter"].keys.keys() - _SHARED_WITH_MEGATRON
    return bool(keys & config.keys()) or str(config.get("use_mca", config.get("USE_MCA", ""))).lower() in ("1", "true")


def fsdp_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the FSDP settings of transformers' two keys or of accelerate's variables."""
    options = config.get("fsdp") or ()
    options = options.split() if isinstance(options, str) else options if isinstance(options, list) else ()
    settings = config.get("fsdp_config")
    settings = settings if isinstance(settings, Mapping) else {}
    fsdp = {str(key).removeprefix("fsdp_"): value for key, value in settings.items()}
    fsdp |= {key.removeprefix("FSDP_").lower(): value for key, value in config.items() if key.startswith("FSDP_")}
    version = 2 if str(fsdp.get("version", 1)) == "2" else 1
    shards_always = "shard_grad_op" not in options and fsdp.get("sharding_strategy") not in ("SHARD_GRAD_OP", 2)
    values = {"version": version, "offload": "offload" in options or _is_on(fsdp.get("offload_params"))}
    values["reshard_after_forward"] = shards_always and _is_on(fsdp.get("reshard_after_forward", True))
    return {f"parallel.fsdp.{name}": value for name, value in values.items()}


def _is_on(value: Any) -> bool:
    return str(value).lower() in ("1", "true", "full_shard")


def sharded_by(sharding: Any, read_file: ReadFile | None, environment: str) -> Choice:
    """Return the engine of a DeepSpeed configuration, and its further values."""
    settings, code = _zero_settings(sharding, read_file)
    zero = settings.get("zero_optimization")
    zero = zero if isinstance(zero, Mapping) else {}
    stage = zero.get("stage", 0)
    if stage not in (2, 3):
        reason = because("import_deepspeed_stage", "deepspeed", stage=stage)
        return Choice(engine=f"{environment}-{'zero2' if stage == 1 else 'ddp'}", reasons={"deepspeed": reason})
    optimizer, weights = (_device(zero.get(key)) for key in ("offload_optimizer", "offload_param"))
    weights = weights if stage == 3 else None
    engine = f"{environment}-zero{stage}{'-offload' if optimizer or weights else ''}"
    reason = because(code, "deepspeed")
    if lost := sorted(str(key) for key in settings.keys() - _WRITTEN):
        reason = because("import_deepspeed_lost", "deepspeed", keys=", ".join(lost))
    if weights and not optimizer:
        reason = because("import_offload_weights_alone", "deepspeed")
    values: dict[str, Any] = {}
    if (device := optimizer or weights) and device.get("device") == "nvme":
        values = {"parallel.offload_device": "nvme", "parallel.offload_folder": device.get("nvme_path")}
    if stage == 3 and optimizer and not weights:
        values["parallel.offload_parameters"] = False
    return Choice(engine=engine, values=values, reasons={"deepspeed": reason})


def _zero_settings(sharding: Any, read_file: ReadFile | None) -> tuple[Mapping[str, Any], str]:
    """Return the DeepSpeed configuration and the code of the reason. Raises ProblemsError if its file is not available.

    Without files, a name of LLaMA-Factory's own examples stands for their content.
    """
    if isinstance(sharding, Mapping):
        return sharding, "import_deepspeed_ours"
    name = str(sharding)
    if read_file is not None and (settings := read_file(name)) is not None:
        return settings, "import_deepspeed_ours"
    zero = _STOCK.get(name.rpartition("/")[2]) if read_file is None else None
    if zero is None:
        raise refused("import_deepspeed_missing", "deepspeed", path=name)
    return {"zero_optimization": zero}, "import_deepspeed_stock"


def _device(entry: Any) -> Mapping[str, Any] | None:
    """Return an offload section of DeepSpeed's configuration if it offloads."""
    is_used = isinstance(entry, Mapping) and entry.get("device", "none") != "none"
    return entry if is_used else None
