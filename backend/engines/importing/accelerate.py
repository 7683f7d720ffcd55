"""A configuration of `accelerate launch`: how it shards, and the machines that it names."""

from collections.abc import Mapping
from typing import Any

from backend.job.problems import Problem, ProblemsError

_PLAIN = frozenset({"NO", "MULTI_GPU", "MULTI_CPU", "MULTI_NPU"})


def sharding_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a LLaMA-Factory configuration that shard as accelerate's file does. ProblemsError.

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
