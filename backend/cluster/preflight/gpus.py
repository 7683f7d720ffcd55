"""Checks of one node's GPUs, and of its torch against its driver."""

from collections.abc import Sequence

from backend.cluster.inventory.gpus import BUSY_MIB, GpuOfNode, Gpus, link_words
from backend.cluster.inventory.software import NodeFacts, python_field
from backend.cluster.preflight.fix_commands import pip_command
from backend.cluster.preflight.readings import NodeReadings
from backend.cluster.preflight.results import CheckResult, Checks
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.presets import READING, least_gpu, resolve_gpu, usable_gib

_BUILDS = {(13, 0): "cu130", (12, 8): "cu128", (12, 6): "cu126"}
"""The driver's CUDA -> the name of torch's builds for it, https://pytorch.org/get-started/previous-versions/."""


def check_gpus(node: NodeReadings) -> list[CheckResult]:
    """Check that a node has a sound, whole and free GPU for each rank. A plan on CPUs has no such check."""
    job, checks, present = node.job, node.checks, node.hardware.gpus
    if resolve_gpu(job.cluster).device == "cpu":
        return []
    wanted = job.cluster.gpus_per_node
    if not present.is_nvidia:
        return [checks.warning("gpus", "no_nvidia_smi", "cluster.gpu", wanted=wanted)]
    faulty = [gpu for gpu in present.gpus if gpu.fault]
    if faulty:
        faults = ", ".join(f"GPU {gpu.index}: {gpu.fault}" for gpu in faulty)
        return [checks.wrong("gpus", "gpu_lost", checks.address_field, said=faults, command=_reset(faulty))]
    if len(present.gpus) < wanted and present.trouble:
        return [checks.wrong("gpus", "gpu_lost", checks.address_field, said=present.trouble, command="sudo reboot")]
    if len(present.gpus) < wanted:
        return [checks.wrong("gpus", "too_few_gpus", "cluster.gpus_per_node", found=len(present.gpus), wanted=wanted)]
    divided = [str(gpu.index) for gpu in present.gpus[:wanted] if gpu.is_divided]
    if divided:
        command = f"sudo nvidia-smi -i {','.join(divided)} -mig 0"
        return [checks.wrong("gpus", "gpu_divided", checks.address_field, gpus=divided, command=command)]
    return [_check_health(checks, present, present.gpus[:wanted]), _check_free(job, checks, present)]


def _check_health(checks: Checks, present: Gpus, used: Sequence[GpuOfNode]) -> CheckResult:
    """Check memory errors and power limits of the GPUs. The result names only the most serious problem.

    https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
    """
    field = checks.address_field
    if failed := [str(gpu.index) for gpu in used if gpu.rows_failed]:
        return checks.warning("gpus", "gpu_rows_failed", field, gpus=failed)
    if wrong := [gpu for gpu in used if gpu.ecc_errors]:
        errors = ", ".join(f"GPU {gpu.index}: {gpu.ecc_errors}" for gpu in wrong)
        return checks.warning("gpus", "gpu_ecc_errors", field, said=errors, command=_reset(wrong))
    if pending := [gpu for gpu in used if gpu.rows_pending]:
        gpus = [str(gpu.index) for gpu in pending]
        return checks.warning("gpus", "gpu_rows_pending", field, gpus=gpus, command=_reset(pending))
    if held := [gpu for gpu in used if gpu.is_held]:
        limits = ", ".join(f"GPU {gpu.index}: {gpu.power_w} / {gpu.default_power_w} W" for gpu in held)
        indices = ",".join(str(gpu.index) for gpu in held)
        command = f"sudo nvidia-smi -i {indices} -pl {max(gpu.default_power_w or 0 for gpu in held)}"
        return checks.warning("gpus", "gpu_power_held", field, said=limits, command=command)
    return checks.ok("gpus", gpus=len(present.gpus), model=present.gpus[0].name, links=link_words(present.links))


def _reset(gpus: Sequence[GpuOfNode]) -> str:
    return f"sudo nvidia-smi --gpu-reset -i {','.join(str(gpu.index) for gpu in gpus)}"


def _check_free(job: Job, checks: Checks, present: Gpus) -> CheckResult:
    """Check that no other process uses the GPUs."""
    busy = [gpu for gpu in present.gpus[: job.cluster.gpus_per_node] if _used_mib(gpu, present) > BUSY_MIB]
    if not busy:
        return checks.ok("gpus_free")
    used = ", ".join(f"GPU {gpu.index}: {_used_mib(gpu, present) / 1024:.1f} GiB" for gpu in busy)
    indices = {gpu.index for gpu in busy}
    processes = [process for process in present.processes if process.gpu in indices]
    users = sorted({f"{process.user or '?'}: {process.name or '?'} (pid {process.pid})" for process in processes})
    code = "gpus_busy" if users else "gpus_busy_hidden"
    return checks.warning("gpus_free", code, checks.address_field, used=used, who=", ".join(users))


def _used_mib(gpu: GpuOfNode, present: Gpus) -> int:
    """Return a GPU's memory in use. Where nvidia-smi does not report it, return the memory of the GPU's processes."""
    if gpu.memory_used_mib is not None:
        return gpu.memory_used_mib
    return sum(process.memory_mib or 0 for process in present.processes if process.gpu == gpu.index)


def check_gpu_memory(node: NodeReadings) -> list[CheckResult]:
    """Check that the GPUs have the memory that the plan assumes, where nvidia-smi reports it."""
    memory_gib = [gpu.memory_mib / 1024 for gpu in node.hardware.gpus.gpus if gpu.memory_mib is not None]
    if not memory_gib:
        return []
    least, counted = usable_gib(min(memory_gib)), least_gpu(node.job.cluster).memory_gib
    if least >= (1 - READING) * counted:
        return [node.checks.ok("gpu_memory", gib=round(least, 2))]
    values = {"least": round(least, 1), "counted": round(counted, 1), "read": round(min(memory_gib), 2)}
    field = f"cluster.hosts[{node.checks.rank}].gpu_memory_gib"
    return [node.checks.warning("gpu_memory", "gpu_memory_below", field, **values)]


def check_cuda(node: NodeReadings) -> list[CheckResult]:
    """Check that torch is built with CUDA, and with no newer major version than the driver supports.

    Any driver supports all of its major version (https://docs.nvidia.com/deploy/cuda-compatibility/).
    """
    job, checks, facts, present = node.job, node.checks, node.facts, node.hardware.gpus
    if resolve_gpu(job.cluster).device == "cpu" or not present.usable or facts.cuda is None:
        return []
    if facts.cuda == "":
        values = {"torch": facts.modules.get("torch"), "command": _cuda_build(job, checks.rank, facts, present)}
        return [checks.wrong("cuda", "torch_without_cuda", python_field(job, checks.rank), **values)]
    if present.cuda and _major(facts.cuda) > _major(present.cuda):
        values = {"cuda": facts.cuda, "driver": present.gpus[0].driver, "newest": present.cuda}
        return [checks.wrong("cuda", "driver_too_old", checks.address_field, **values)]
    return [checks.ok("cuda", cuda=facts.cuda, nccl=facts.nccl, driver=present.gpus[0].driver)]


def _cuda_build(job: Job, rank: int, facts: NodeFacts, present: Gpus) -> str:
    """Return the command that installs the same torch for the newest CUDA of both the driver and torch's index."""
    newest = tuple(int(part) for part in (present.cuda or "12.8").split("."))
    name = next((name for least, name in _BUILDS.items() if newest >= least), "cu118")
    version = (facts.modules.get("torch") or "").partition("+")[0]
    index = ["--extra-index-url", f"https://download.pytorch.org/whl/{name}"]
    return pip_command(environment_of(job, rank), facts, [*index, f"torch=={version}+{name}"])


def _major(version: str) -> int:
    return int(version.partition(".")[0])
