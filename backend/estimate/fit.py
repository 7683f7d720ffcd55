"""What a user must know beside the figures: whether a plan fits its GPUs, and how far such figures were off."""

from backend.estimate.estimate import Estimate
from backend.job.job import Job
from backend.job.presets import Accuracy, accuracy
from backend.job.problems import Problem


def over_memory(found: Estimate) -> list[Problem]:
    """A warning where the plan needs more than a GPU has; nothing where it fits."""
    if found.fits:
        return []
    values = {
        "needed_gib": round(found.reserved_gib + found.outside_gib, 1),
        "stage": found.peak_stage,
        "memory_gib": round(found.gpu_memory_gib, 1),
    }
    return [Problem(code="over_memory", field="parallel", severity="warning", values=values)]


def over_host_memory(job: Job, found: Estimate) -> list[Problem]:
    """A warning where what is offloaded needs more than a node's RAM; nothing where that is not known."""
    memory_gib = job.cluster.host_memory_gib
    if memory_gib is None or found.host_memory_gib <= memory_gib:
        return []
    values = {"needed_gib": round(found.host_memory_gib, 1), "memory_gib": round(memory_gib, 1)}
    field = "parallel.optimizer_offload_fraction" if job.traits.is_megatron else "engine"
    return [Problem(code="host_memory_exceeded", field=field, severity="warning", values=values)]


def accuracy_of(job: Job) -> Accuracy | None:
    """The errors on published runs of the job's kind of engine; None where it was never compared."""
    return accuracy().get("megatron" if job.traits.is_megatron else "hugging_face")
