"""Whether a plan fits its GPUs, as a problem of the job."""

from backend.estimate.estimate import Estimate
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
