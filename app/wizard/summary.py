"""The estimate in one line, shown from the second step on."""

from typing import Any

from app.text.intervals import memory_error, time_error
from app.text.plans import need_gib, plan_name, plan_sizes
from app.wizard.draft_state import DraftState
from backend.estimate import Estimate, accuracy_of, is_close, over_gpu_gib, over_host_gib
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.estimate.time.calibrated import reserved_ratio
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.problems import errors


def summarise(state: DraftState) -> dict[str, Any]:
    """Return the figures of the draft's plan, or the number of errors if there are any."""
    job, shape, estimate = state.job, state.shape, state.estimate
    if job is None or state.gpu is None or not state.is_sound:
        return {"sound": False, "errors": len(errors(state.problems))}
    return {
        "sound": True,
        "fits": estimate.fits if estimate else None,
        "near": is_close(estimate) if estimate else None,
        "need_gib": need_gib(estimate),
        "gpu_gib": state.gpu.memory_gib,
        "host": _host(job, estimate) if estimate else None,
        "plan": plan_name(plan_sizes(job)),
        "bubble": estimate.bubble_fraction if estimate and job.traits.is_megatron else None,
        "data_parallel": job.data_parallel,
        "global_batch": job.global_batch,
        "parameters": model_parameters(model_layers(shape)) if shape else None,
        "accuracy": _accuracy(job, shape, estimate) if estimate and shape else None,
        "speed": estimate.tokens_per_s_per_gpu if estimate else None,
        "hours": estimate.hours if estimate else None,
        "memory_error": memory_error(job) if estimate else None,
        "time_error": time_error(job, estimate),
    }


def _host(job: Job, estimate: Estimate) -> dict[str, Any] | None:
    """Return the needed and the existing RAM of a node if only the RAM is why the plan does not fit."""
    if over_gpu_gib(estimate) or not over_host_gib(job, estimate):
        return None
    return {"need": estimate.host_memory_gib, "node": job.cluster.host_memory_gib}


def _accuracy(job: Job, shape: ModelShape, estimate: Estimate) -> dict[str, Any]:
    """Return the interval, and the run that calibrates the memory or the error on published measurements."""
    if reserved_ratio(job) is not None:
        return {"run": job.cluster.calibration.run, "expected": memory_error(job)}
    known = accuracy_of(job, shape)
    own = known and {"group": known.group, "rows": known.rows, "median": known.median, "largest": known.max}
    return {"expected": memory_error(job), "own": own}
