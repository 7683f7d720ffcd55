"""Progress and speed of a run, from the newest steps of rank 0."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from backend.job.job import Job
from backend.runs.records import Point

WATCHED = "watched"
"""Key that no job file has. It marks the job of an external run."""
RECENT_STEPS = 50
"""Number of steps for the median step time. The first step of an attempt is left out, because it compiles and loads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Progress of rank 0."""

    step: int | None = None
    total_steps: int | None = None
    step_s: float | None = None
    """Median of the recent steps."""
    eta_s: float | None = None
    tokens_per_s: float | None = None
    """Throughput of the whole gang; the median, because steps differ in length."""


def progress(job: Job, points: Sequence[Point]) -> Progress:
    """Return the progress from the newest RECENT_STEPS points of rank 0, oldest first."""
    if not points:
        return Progress()
    last = points[-1]
    timed = [p for p in points if p.step_s and p.step != 1] or [p for p in points if p.step_s]
    step_s = median(p.step_s for p in timed if p.step_s) if timed else None
    rates = [tokens / p.step_s for p in timed if p.step_s and (tokens := step_tokens(job, p)) is not None]
    steps_left = None if last.total_steps is None else max(0, last.total_steps - last.step)
    return Progress(
        step=last.step,
        total_steps=last.total_steps,
        step_s=step_s,
        eta_s=None if steps_left is None or step_s is None else steps_left * step_s,
        tokens_per_s=median(rates) if rates else None,
    )


def step_tokens(job: Job, point: Point) -> int | None:
    """Return the tokens that the whole gang processed in a step; None if they are not known.

    The trainer counts them with padding. Without its count, they are those of mean samples.
    """
    return assumed_tokens(job) if point.tokens is None else point.tokens


def assumed_tokens(job: Job) -> int | None:
    """Return the tokens of a step whose engine does not report them, by the mean sample; None if the job is unknown."""
    return None if WATCHED in job.unknown else job.step_tokens
