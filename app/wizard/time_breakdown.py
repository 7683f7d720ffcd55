"""Where the chosen plan's iteration spends its time, and what speed follows."""

from typing import Any

from app.text.errors import time_error
from app.wizard.draft_state import Reading
from backend.estimate import gradient_exchange, speed_up
from backend.estimate.model.lengths import padding_share
from backend.estimate.time.calibrated import is_timed

PARTS = (
    "compute", "recompute", "tensor", "context", "expert", "pipeline", "bubble", "data", "optimizer", "offload",
)  # fmt: skip
"""In the order they are stacked: the passes first, then what comes between iterations."""


def spent(reading: Reading) -> dict[str, Any] | None:
    """The parts in seconds, the speed with its error; None while nothing is modelled."""
    job, found = reading.job, reading.estimate
    if job is None or found is None or reading.shape is None or reading.gpu is None or not reading.is_sound:
        return None
    if found.time_s is None or found.iteration_s is None:
        return {"is_known": False}
    return {
        "is_known": True,
        "parts": [[name, found.time_s[name]] for name in PARTS if found.time_s.get(name)],
        "exchange": gradient_exchange(job, reading.shape, reading.gpu, reading.memory),
        "iteration_s": found.iteration_s,
        "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu,
        "gpus": job.world_size,
        "nodes": job.cluster.nodes,
        "speed_up": speed_up(job, reading.shape, reading.gpu, found) if job.cluster.nodes > 1 else None,
        "mfu": found.mfu,
        "tflops": found.model_tflops_per_gpu,
        "hours": found.hours,
        "error": time_error(job, found),
        "padding": padding_share(job),
        "calibrated_on": found.calibrated_on if is_timed(job.cluster) else None,
        "probed_on": found.probed_on,
    }
