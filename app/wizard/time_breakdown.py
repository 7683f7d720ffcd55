"""Time of the parts of the chosen plan's iteration, and the speed that follows."""

from typing import Any

from app.text.intervals import time_error
from app.text.plans import untimed_key
from app.wizard.draft_state import DraftState
from backend.estimate import gradient_exchange, speed_up
from backend.estimate.model.lengths import padding_share
from backend.estimate.time.calibrated import is_timed

PARTS = (
    "compute", "recompute", "tensor", "context", "expert", "pipeline", "bubble", "data", "optimizer", "offload",
)  # fmt: skip
"""Parts in the order of the stack: first the passes, then the work between iterations."""


def time_breakdown(state: DraftState) -> dict[str, Any] | None:
    """Return the parts in seconds, and the speed with its error. None if nothing is modelled."""
    job, estimate = state.job, state.estimate
    if job is None or estimate is None or state.shape is None or state.gpu is None or not state.is_sound:
        return None
    if estimate.time_s is None or estimate.iteration_s is None:
        return {"is_known": False, "why": untimed_key(job)}
    return {
        "is_known": True,
        "parts": [[name, estimate.time_s[name]] for name in PARTS if estimate.time_s.get(name)],
        "exchange": gradient_exchange(job, state.shape, state.gpu, state.memory),
        "iteration_s": estimate.iteration_s,
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "gpus": job.world_size,
        "nodes": job.cluster.nodes,
        "speed_up": speed_up(job, state.shape, state.gpu, estimate) if job.cluster.nodes > 1 else None,
        "mfu": estimate.mfu,
        "tflops": estimate.model_tflops_per_gpu,
        "hours": estimate.hours,
        "error": time_error(job, estimate),
        "padding": padding_share(job),
        "calibrated_on": estimate.calibrated_on if is_timed(job.cluster) else None,
        "probed_on": estimate.probed_on,
    }
