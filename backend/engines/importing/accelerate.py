"""A configuration of `accelerate launch`: how it shards, and the machines that it names."""

from collections.abc import Mapping
from typing import Any

from backend.engines.importing.choose import fsdp_values
from backend.job.problems import Problem, ProblemsError

_PLAIN = frozenset({"NO", "MULTI_GPU", "MULTI_CPU", "MULTI_NPU"})


def sharding_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a LLaMA-Factory configuration that shard as accelerate's file does. Raises ProblemsError.

    Source: accelerate 1.11.0 commands/config/config_args.py and utils/launch.py.
    """
    kind = str(settings.get("distributed_type", "NO")).upper()
    if kind == "FSDP":
        fsdp = settings.get("fsdp_config")
        values = fsdp if isinstance(fsdp, Mapping) else {}
        variables = {f"FSDP_{str(key).removeprefix('fsdp_').upper()}": value for key, value in values.items()}
        return {"ACCELERATE_USE_FSDP": True, **variables}
    if kind == "DEEPSPEED":
        deepspeed = settings.get("deepspeed_config")
        deepspeed = deepspeed if isinstance(deepspeed, Mapping) else {}
        if file := deepspeed.get("deepspeed_config_file"):
            return {"deepspeed": file}
        return {"deepspeed": {"zero_optimization": _zero(deepspeed)}}
    if kind in _PLAIN:
        return {}
    raise ProblemsError([Problem(code="import_accelerate_kind", field="distributed_type", values={"kind": kind})])


def swift_sharding_of(settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an ms-swift configuration `config` that shard as accelerate's file does. Raises ProblemsError.

    FSDP becomes the content of a file that ms-swift's own `fsdp` names (swift/config/fsdp2.json). Activations are
    checkpointed by the file, or by `gradient_checkpointing`, which is on if it is missing.
    """
    sharding = sharding_of(settings)
    if "ACCELERATE_USE_FSDP" not in sharding:
        return sharding
    values = {path.rpartition(".")[2]: value for path, value in fsdp_values(sharding).items()}
    is_checkpointed = sharding.get("FSDP_ACTIVATION_CHECKPOINTING") or config.get("gradient_checkpointing") is not False
    options = {
        "fsdp_version": values["version"],
        "reshard_after_forward": values["reshard_after_forward"],
        "activation_checkpointing": bool(is_checkpointed),
    }
    return {"fsdp": {"fsdp": "offload" if values["offload"] else "", "fsdp_config": options}}


def _zero(deepspeed: Mapping[str, Any]) -> dict[str, Any]:
    sections = {"offload_optimizer": "offload_optimizer_device", "offload_param": "offload_param_device"}
    offload = {section: {"device": str(deepspeed.get(key) or "none")} for section, key in sections.items()}
    return {"stage": deepspeed.get("zero_stage", 2), **offload}


def machines_of(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return `nodes` and `gpus_per_node`, as far as the file gives them: num_processes counts all machines together."""
    nodes, processes = settings.get("num_machines"), settings.get("num_processes")
    if not isinstance(nodes, int) or not isinstance(processes, int) or nodes < 1 or processes % nodes:
        return {}
    return {"nodes": nodes, "gpus_per_node": processes // nodes}
