"""The estimate in one line, on screen from the second step on."""

from typing import Any

from app.text.errors import memory_error, time_error
from app.text.plans import need_gib, plan_name, plan_sizes
from app.wizard.draft_state import Reading
from backend.estimate import Estimate, accuracy_of, may_not_fit, over_gpu_gib, over_host_gib
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.estimate.time.calibrated import reserved_ratio
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.problems import errors


def summarise(reading: Reading) -> dict[str, Any]:
    """The figures of the plan in the draft; only how many errors stand in the way while there are any."""
    job, shape, found = reading.job, reading.shape, reading.estimate
    if job is None or reading.gpu is None or not reading.is_sound:
        return {"sound": False, "errors": len(errors(reading.problems))}
    return {
        "sound": True,
        "fits": found.fits if found else None,
        "near": may_not_fit(job, found) if found else None,
        "need_gib": need_gib(found),
        "gpu_gib": reading.gpu.memory_gib,
        "host": _host(job, found) if found else None,
        "plan": plan_name(plan_sizes(job)),
        "bubble": found.bubble_fraction if found and job.traits.is_megatron else None,
        "data_parallel": job.data_parallel,
        "global_batch": job.global_batch,
        "parameters": model_parameters(model_layers(shape)) if shape else None,
        "accuracy": _accuracy(job, shape, found) if found and shape else None,
        "speed": found.tokens_per_s_per_gpu if found else None,
        "hours": found.hours if found else None,
        "time_error": time_error(job, found),
    }


def _host(job: Job, found: Estimate) -> dict[str, Any] | None:
    """What a node's RAM needs to hold and has, where that alone is why the plan does not fit."""
    if over_gpu_gib(found) or not over_host_gib(job, found):
        return None
    return {"need": found.host_memory_gib, "node": job.cluster.host_memory_gib}


def _accuracy(job: Job, shape: ModelShape, found: Estimate) -> dict[str, Any]:
    """The expected error of memory, and the error on the project's own sources; or the run that corrects it."""
    if reserved_ratio(job) is not None:
        return {"run": job.cluster.calibration.run}
    known = accuracy_of(job, shape)
    own = known and {"group": known.group, "rows": known.rows, "median": known.median, "largest": known.max}
    return {"expected": memory_error(found), "own": own}
