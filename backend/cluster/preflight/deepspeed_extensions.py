"""DeepSpeed's parts in C++: built where they are first used, which needs a compiler and takes minutes.

A build that was killed leaves a lock (torch.utils.cpp_extension), for which every later rank waits without end.
"""

from backend.cluster.preflight.results import CheckResult, Checks
from backend.cluster.program_answers import Paths
from backend.job.job import Job
from backend.job.presets import resolve_gpu

EXTENSIONS = "TORCH_EXTENSIONS_DIR"


def needed_parts(job: Job) -> list[str]:
    """Names of the parts that the job's engine loads, as DeepSpeed's op_builder has them."""
    traits = job.traits
    if not traits.zero_stage:
        return []
    parts = ["deepspeed_shm_comm"] if resolve_gpu(job.cluster).device == "cpu" else []
    if traits.offloads != "none":
        parts.append("cpu_adam")
        if job.parallel.offload_device == "nvme" and traits.zero_stage == 3:
            parts.append("async_io")
    return parts


def check_parts(job: Job, checks: Checks, found: Paths) -> list[CheckResult]:
    """Whether they are built, or can be."""
    if not needed_parts(job):
        return []
    parts = found["parts"]
    if parts["locks"]:
        return [checks.warning("deepspeed", "deepspeed_locked", "engine", paths=parts["locks"])]
    if parts["unbuilt"] and not parts["compiler"]:
        return [checks.wrong("deepspeed", "deepspeed_needs_compiler", "engine", parts=parts["unbuilt"])]
    return [checks.ok("deepspeed", unbuilt=parts["unbuilt"])]
