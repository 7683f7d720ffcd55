"""Choice of the engine of a LLaMA-Factory configuration. Configurations that we cannot launch are refused."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.engines.importing.report import because
from backend.engines.known_keys import programs
from backend.job.problems import Problem, ProblemsError

ReadJson = Callable[[str], Mapping[str, Any] | None]
"""Return the mapping in a JSON file that a configuration names; None if it is not available."""

_ZERO_NAME = re.compile(r"z(?:ero)?[_-]?([0-3])", re.IGNORECASE)
_STAGES = frozenset({"pt", "sft", "dpo"})
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
    if "model" in config and "model_name_or_path" not in config:
        raise _refused("import_not_v0", "model")
    if not config.get("do_train", False):
        raise _refused("import_no_training", "do_train")
    stage = str(config.get("stage", "sft"))
    if stage not in _STAGES:
        raise _refused("import_stage", "stage", stage=stage)
    method = str(config.get("finetuning_type", "lora"))
    if method not in ("full", "freeze", "lora"):
        raise _refused("import_method", "finetuning_type", method=method)


def choose_engine(config: Mapping[str, Any], read_json: ReadJson) -> Choice:
    """Return the engine that shards as the configuration does."""
    sharding = config.get("deepspeed")
    if _is_megatron(config):
        reasons = {key: because("import_sharding_with_megatron", key) for key in config if _FSDP.match(key)}
        if sharding:
            reasons["deepspeed"] = because("import_deepspeed_with_megatron", "deepspeed")
        return Choice(engine="llamafactory-megatron", reasons=reasons)
    if sharding:
        return _zero(sharding, read_json)
    if config.get("fsdp") or _is_on(config.get("ACCELERATE_USE_FSDP")):
        return Choice(engine="llamafactory-fsdp", values=_fsdp_values(config))
    return Choice(engine="llamafactory-ddp")


def _is_megatron(config: Mapping[str, Any]) -> bool:
    """Return whether the configuration has keys that only mcore_adapter knows, or its switch."""
    keys = programs()["mcore_adapter"].keys.keys() - _SHARED_WITH_MEGATRON
    return bool(keys & config.keys()) or str(config.get("use_mca", config.get("USE_MCA", ""))).lower() in ("1", "true")


def _fsdp_values(config: Mapping[str, Any]) -> dict[str, Any]:
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


def _zero(sharding: Any, read_json: ReadJson) -> Choice:
    """Return the engine of a DeepSpeed configuration, by its content if available, else by the name of its file."""
    name = sharding if isinstance(sharding, str) else ""
    settings = sharding if isinstance(sharding, Mapping) else read_json(name)
    values: dict[str, Any] = {}
    if settings is not None:
        zero = settings.get("zero_optimization")
        zero = zero if isinstance(zero, Mapping) else {}
        stage = zero.get("stage", 0)
        entries = [zero.get(key) for key in ("offload_optimizer", "offload_param")]
        offloading = [item for item in entries if isinstance(item, Mapping) and item.get("device", "none") != "none"]
        offload = bool(offloading)
        if offloading and offloading[0]["device"] == "nvme":
            values = {"parallel.offload_device": "nvme", "parallel.offload_folder": offloading[0].get("nvme_path")}
    elif match := _ZERO_NAME.search(name.rpartition("/")[2]):
        stage, offload = int(match[1]), "offload" in name.lower()
    else:
        reason = because("import_deepspeed_unknown", "deepspeed", path=name)
        return Choice(engine="llamafactory-zero3", reasons={"deepspeed": reason})
    if stage in (0, 1):
        reason = because("import_deepspeed_stage", "deepspeed", stage=stage)
        return Choice(engine="llamafactory-zero2" if stage else "llamafactory-ddp", reasons={"deepspeed": reason})
    engine = f"llamafactory-zero{3 if stage == 3 else 2}{'-offload' if offload else ''}"
    return Choice(engine=engine, values=values, reasons={"deepspeed": because("import_deepspeed_ours", "deepspeed")})


def _refused(code: str, key: str, **values: object) -> ProblemsError:
    return ProblemsError([Problem(code=code, field=key, values={"key": key, **values})])
