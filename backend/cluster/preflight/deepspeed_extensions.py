"""Check of DeepSpeed's C++ extensions. DeepSpeed builds them at first use: it needs a compiler and takes minutes.

A build that was killed leaves a lock (torch.utils.cpp_extension). Every later rank waits for this lock forever.
"""

from backend.cluster.preflight.readings import NodeReadings
from backend.cluster.preflight.results import CheckResult
from backend.job.job import Job
from backend.job.presets import resolve_gpu

EXTENSIONS = "TORCH_EXTENSIONS_DIR"


def needed_parts(job: Job) -> list[str]:
    """Return the extensions that the job's engine loads, by their names in DeepSpeed's op_builder."""
    traits = job.traits
    if not traits.zero_stage:
        return []
    parts = ["deepspeed_shm_comm"] if resolve_gpu(job.cluster).device == "cpu" else []
    if traits.offloads != "none":
        parts.append("cpu_adam")
        if job.parallel.offload_device == "nvme" and traits.zero_stage == 3:
            parts.append("async_io")
    return parts


def check_parts(node: NodeReadings) -> list[CheckResult]:
    """Check that the extensions are built, or that the node can build them."""
    if not needed_parts(node.job):
        return []
    checks, parts = node.checks, node.paths["parts"]
    if parts["locks"]:
        return [checks.warning("deepspeed", "deepspeed_locked", "engine", paths=parts["locks"])]
    if parts["unbuilt"] and not parts["compiler"]:
        return [checks.wrong("deepspeed", "deepspeed_needs_compiler", "engine", parts=parts["unbuilt"])]
    return [checks.ok("deepspeed", unbuilt=parts["unbuilt"])]
