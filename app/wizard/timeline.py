"""The chosen plan's pipeline: when every stage runs which pass, and how long it waits."""

from typing import Any

from app.wizard.draft_state import Reading
from backend.estimate import Estimate
from backend.estimate.time.schedule import bubble_fraction, iteration_time
from backend.estimate.time.simulate import Event, simulate
from backend.job.job import Job

DRAWN_PASSES = 3000
"""About as many as are drawn; of a longer iteration the steady part is cut."""
TICKS = 100_000
"""Starts are whole ticks of the drawn part: short to send, finer than a pixel."""


def timeline(reading: Reading) -> dict[str, Any] | None:
    """What static/wizard/timeline.js draws: None while nothing is modelled, `stages` 1 where there is no pipeline."""
    job, found = reading.job, reading.estimate
    if job is None or found is None or not reading.is_sound:
        return None
    times = found.chunk_times
    if not job.traits.is_megatron or job.parallel.pipeline == 1 or times is None:
        return {"stages": 1, "has_stages": job.traits.is_megatron, "is_known": times is not None}
    forward, backward = ([[pair[way] for pair in stage] for stage in times] for way in (0, 1))
    has_tower = reading.shape is not None and reading.shape.vision is not None and job.training.images_per_sample > 0
    return _drawn(job, found, forward, backward, has_tower)


def _drawn(
    job: Job, found: Estimate, forward: list[list[float]], backward: list[list[float]], has_tower: bool
) -> dict[str, Any]:
    pipeline, virtual, count = job.parallel.pipeline, job.parallel.virtual_pipeline, found.micro_batches
    drawn = min(count, drawn_micro_batches(pipeline, virtual))
    events = simulate(forward, backward, virtual, drawn)
    end = max(event.end for event in events)
    total = float(iteration_time(forward, backward, virtual, count))
    busy = [count * (sum(there) + sum(back)) for there, back in zip(forward, backward, strict=True)]
    warm = min(event.start for event in events if not event.is_forward)
    cool = max(event.end for event in events if event.is_forward)
    return {
        "stages": pipeline,
        "virtual": virtual,
        "micro_batches": count,
        "left_out": count - drawn,
        "total_s": total,
        "drawn_s": end,
        "tick_s": end / TICKS,
        "warm_s": warm,
        "cool_s": cool,
        "forward_s": forward,
        "backward_s": backward,
        "busy_s": busy,
        "has_tower": has_tower,
        "layers": [stage.layers for stage in found.stages],
        "passes": _passes(events, pipeline, virtual, end / TICKS),
        "bubble": found.bubble_fraction,
        "textbook": found.bubble_textbook,
        "doubled": float(bubble_fraction(forward, backward, virtual, 2 * count)),
    }


def drawn_micro_batches(pipeline: int, virtual: int) -> int:
    """How many micro-batches are drawn at most: whole groups of PP, two of them unless a pipeline is very deep."""
    fitting = DRAWN_PASSES // (2 * pipeline * pipeline * virtual)
    return pipeline * max(fitting, 2 if pipeline <= 16 else 1)


def _passes(events: list[Event], pipeline: int, virtual: int, tick: float) -> list[list[int]]:
    """For each stage two numbers a pass: 2 (micro-batch VPP + chunk), plus 1 for a backward one; its start in ticks."""
    stages: list[list[int]] = [[] for _ in range(pipeline)]
    for event in events:
        code = 2 * (event.micro_batch * virtual + event.chunk) + (not event.is_forward)
        stages[event.stage] += (code, round(event.start / tick))
    return stages
