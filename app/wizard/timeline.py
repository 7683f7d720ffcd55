"""The pipeline of the chosen plan: the passes of each stage over time, and the idle time."""

from typing import Any

from app.wizard.draft_state import DraftState
from backend.estimate import Estimate
from backend.estimate.time.schedule import bubble_fraction, iteration_time
from backend.estimate.time.simulate import Event, simulate
from backend.job.job import Job

DRAWN_PASSES = 3000
"""Approximate maximum number of drawn passes. The steady part of a longer iteration is cut."""
TICKS = 100_000
"""Number of ticks of the drawn part. Starts are whole ticks: short to send, finer than a pixel."""


def timeline(state: DraftState) -> dict[str, Any] | None:
    """Return the data of static/wizard/timeline.js. None if nothing is modelled; `stages` is 1 without a pipeline."""
    job, estimate = state.job, state.estimate
    if job is None or estimate is None or not state.is_sound:
        return None
    times = estimate.chunk_times
    if not job.traits.is_megatron or job.parallel.pipeline == 1 or times is None:
        return {"stages": 1, "has_stages": job.traits.is_megatron, "is_known": times is not None}
    forward, backward = ([[pass_times[direction] for pass_times in stage] for stage in times] for direction in (0, 1))
    has_tower = state.shape is not None and state.shape.vision is not None and job.training.images_per_sample > 0
    return _drawn(job, estimate, forward, backward, has_tower)


def _drawn(
    job: Job, estimate: Estimate, forward: list[list[float]], backward: list[list[float]], has_tower: bool
) -> dict[str, Any]:
    pipeline, virtual, count = job.parallel.pipeline, job.parallel.virtual_pipeline, estimate.micro_batches
    drawn = min(count, drawn_micro_batches(pipeline, virtual))
    events = simulate(forward, backward, virtual, drawn)
    end = max(event.end for event in events)
    total = float(iteration_time(forward, backward, virtual, count))
    busy = [count * (sum(ahead) + sum(back)) for ahead, back in zip(forward, backward, strict=True)]
    warm_up_end = min(event.start for event in events if not event.is_forward)
    cool_down_start = max(event.end for event in events if event.is_forward)
    return {
        "stages": pipeline,
        "virtual": virtual,
        "micro_batches": count,
        "left_out": count - drawn,
        "total_s": total,
        "drawn_s": end,
        "tick_s": end / TICKS,
        "warm_s": warm_up_end,
        "cool_s": cool_down_start,
        "forward_s": forward,
        "backward_s": backward,
        "busy_s": busy,
        "has_tower": has_tower,
        "layers": [stage.layers for stage in estimate.stages],
        "passes": _passes(events, pipeline, virtual, end / TICKS),
        "bubble": estimate.bubble_fraction,
        "textbook": estimate.bubble_textbook,
        "doubled": float(bubble_fraction(forward, backward, virtual, 2 * count)),
    }


def drawn_micro_batches(pipeline: int, virtual: int) -> int:
    """Return the maximum number of drawn micro-batches: whole groups of PP, and two of them up to PP=16."""
    fitting = DRAWN_PASSES // (2 * pipeline * pipeline * virtual)
    return pipeline * max(fitting, 2 if pipeline <= 16 else 1)


def _passes(events: list[Event], pipeline: int, virtual: int, tick: float) -> list[list[int]]:
    """Return, for each stage, two numbers per pass: 2 (micro-batch VPP + chunk) + (1 if backward), start in ticks."""
    stages: list[list[int]] = [[] for _ in range(pipeline)]
    for event in events:
        code = 2 * (event.micro_batch * virtual + event.chunk) + (not event.is_forward)
        stages[event.stage] += (code, round(event.start / tick))
    return stages
