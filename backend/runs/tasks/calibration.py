"""Calibration of the estimates of a cluster: ratios of the measured to the estimated step time and memory of a run.

The sources are the job file of the run and the points of its ranks. Both sides of a ratio describe the same work: the
estimate uses the measured sequence length, and steps that compile, save or evaluate are left out.
"""

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from backend.estimate import Estimate, estimate
from backend.estimate.interval import is_memory_assumed, memory_interval, time_interval
from backend.estimate.time.calibrated import is_of_this_training, is_timed, reserved_ratio, training_of
from backend.job.cluster import Calibration
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.presets import Interval, calibration_figures, efficiency_figures, resolve_model
from backend.job.problems import Problem, ProblemsError
from backend.runs.records import Point
from backend.runs.store import attempts, metrics, run_store

FIRST_STEPS = 3
"""First steps of an attempt, which are ignored: they compile kernels, open connections and fill the allocator's cache.
"""
LEAST_STEPS = 10
NEWEST_STEPS = 500
"""Limit of steps; older ones are not read."""
FULL = 0.95
"""Share of the job's sequence length above which samples count as full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMeasured:
    """Measured values of a run beside the estimates for the same work; None where not known."""

    run: str
    steps: int
    """Number of steps for the median."""
    step_s: float | None
    predicted_step_s: float | None
    """Estimate for the measured sequence length, with the current calibration of the cluster."""
    reserved_gib: float | None
    """Largest value of all ranks."""
    predicted_reserved_gib: float | None
    predicted_step_s_low: float | None = None
    """The 80 % interval of predicted_step_s; `predicted_step_s_high` is its upper end. The same for the memory,
    unless it is assumed: then it has no interval."""
    predicted_step_s_high: float | None = None
    predicted_reserved_gib_low: float | None = None
    predicted_reserved_gib_high: float | None = None
    time_ratio: float | None
    """Measured over estimated seconds, without the correction of an earlier run."""
    memory_ratio: float | None
    """Measured reserved over estimated allocated memory."""
    problems: tuple[Problem, ...]
    """Why a ratio is missing, and what it is based on."""

    @property
    def is_useful(self) -> bool:
        return self.time_ratio is not None or self.memory_ratio is not None


def read_run(connection: sqlite3.Connection, run: str, calibration: Calibration | None) -> tuple[Job, RunMeasured]:
    """Return the job of a run, and the measured values of its newest attempt. Raises ProblemsError(unknown_run).

    `calibration`: the current calibration of the cluster, instead of that of the launch.
    """
    job = run_store.job_of(connection, run)
    attempt = attempts.newest(connection, run)
    steps = metrics.newest_points(connection, run, attempt, count=NEWEST_STEPS)
    newest = metrics.newest_of_ranks(connection, run, attempt, ranks=job.world_size)
    if calibration is not None:
        job = replace(job, cluster=replace(job.cluster, calibration=calibration))
    return job, measure_run(job, run, steps, newest)


def measure_run(job: Job, run: str, steps: Sequence[Point], newest: Sequence[Point]) -> RunMeasured:
    """Return the measured values of a run beside the estimates.

    `job`: the job of the run, with the current calibration of the cluster. `steps`: points of rank 0 in one attempt, in
    order. `newest`: the newest point of every rank; its memory figures are peaks since the start.
    """
    timed = [point for point in steps if point.step_s and _is_typical(job, point, steps[0].step)]
    step_s = median(point.step_s for point in timed if point.step_s) if timed else None
    reserved = [point.reserved_gib for point in newest if point.reserved_gib is not None]
    problems: list[Problem] = []
    if len(timed) < LEAST_STEPS:
        values = {"steps": len(timed), "needed": LEAST_STEPS, "first": FIRST_STEPS}
        return _nothing(run, len(timed), Problem(code="calibrate_few_steps", values=values))
    try:
        predicted = estimate(job)
    except ProblemsError as error:
        return _nothing(run, len(timed), *error.problems)
    same = _same_work(job, timed, problems)
    time_ratio = _time_ratio(same, step_s or 0.0, problems) if same else None
    memory_ratio = _memory_ratio(job, predicted, timed, reserved, problems)
    step_s_computed = estimate(same).iteration_s if same else None
    time = time_interval(same or job)
    memory = None if is_memory_assumed(job) else memory_interval(job)
    return RunMeasured(
        run=run,
        steps=len(timed),
        step_s=step_s,
        predicted_step_s=step_s_computed,
        predicted_step_s_low=time.low * step_s_computed if step_s_computed else None,
        predicted_step_s_high=time.high * step_s_computed if step_s_computed else None,
        reserved_gib=max(reserved, default=None),
        predicted_reserved_gib=predicted.reserved_gib,
        predicted_reserved_gib_low=memory.low * predicted.reserved_gib if memory else None,
        predicted_reserved_gib_high=memory.high * predicted.reserved_gib if memory else None,
        time_ratio=time_ratio,
        memory_ratio=memory_ratio,
        problems=tuple(problems),
    )


def calibration_of(job: Job, measured: RunMeasured, date: str) -> Calibration:
    """Return the cluster's calibration with the ratios of this run. The benchmark's speeds stay.

    The ratios of earlier runs of the same training stay in the mean, as long as the new one is within the interval
    around it.
    Raises ProblemsError with the problems of the run when it has no ratio.
    """
    if not measured.is_useful:
        raise ProblemsError(measured.problems)
    previous = job.cluster.calibration
    previous = previous if previous.holds_for(job.cluster.gpu) else Calibration()
    is_again = previous.run == measured.run
    earlier = previous.time_ratio if is_timed(job.cluster) and is_of_this_training(job) else None
    time = _mean_ratio(
        Ratio(earlier, previous.time_runs, previous.time_spread), measured.time_ratio, time_interval(job), is_again
    )
    earlier = reserved_ratio(job) if is_of_this_training(job) else None
    memory = _mean_ratio(
        Ratio(earlier, previous.memory_runs, previous.memory_spread), measured.memory_ratio, memory_interval(job),
        is_again,
    )  # fmt: skip
    return replace(
        previous,
        gpu=job.cluster.gpu,
        run=measured.run,
        run_date=date,
        engine=job.engine,
        training=training_of(job),
        time_ratio=to_four_digits(time.mean),
        time_runs=time.runs,
        time_spread=to_four_digits(time.spread),
        constants=efficiency_figures().version if time.mean is not None else None,
        memory_ratio=to_four_digits(memory.mean),
        memory_runs=memory.runs,
        memory_spread=to_four_digits(memory.spread),
    )


class Ratio(NamedTuple):
    """The ratio of one or several runs, as a calibration stores it."""

    mean: float | None
    """Geometric mean; None if there is none."""
    runs: int | None = None
    """None: one run."""
    spread: float | None = None
    """Standard deviation of the logarithms of the ratios; None with one run, or if it is not known."""


def _mean_ratio(earlier: Ratio, measured: float | None, interval: Interval, is_again: bool) -> Ratio:
    """Return the ratios of earlier runs with that of a new one.

    A ratio outside of the interval around the earlier mean begins anew, because the cluster has changed. A run that is
    measured again replaces one of the runs, and the spread stays.
    """
    if measured is None or earlier.mean is None or not interval.low <= measured / earlier.mean <= interval.high:
        return Ratio(measured)
    runs, deviation = earlier.runs or 1, math.log(measured / earlier.mean)
    count = runs + (0 if is_again else 1)
    if count == 1:
        return Ratio(measured)
    mean, spread = earlier.mean * math.exp(deviation / count), earlier.spread
    if not is_again:
        # The update of Welford 1962; one earlier run has no spread.
        squares = 0.0 if runs == 1 else None if spread is None else (runs - 1) * spread**2
        spread = None if squares is None else math.sqrt((squares + deviation**2 * runs / count) / runs)
    return Ratio(mean, count, spread)


def to_four_digits(value: float | None) -> float | None:
    """Round a value as a calibration stores it."""
    return None if value is None else float(f"{value:.4g}")


def _nothing(run: str, steps: int, *problems: Problem) -> RunMeasured:
    return RunMeasured(
        run=run,
        steps=steps,
        step_s=None,
        predicted_step_s=None,
        reserved_gib=None,
        predicted_reserved_gib=None,
        time_ratio=None,
        memory_ratio=None,
        problems=problems,
    )


def _is_typical(job: Job, point: Point, first_step: int) -> bool:
    """Return whether a step is typical.

    It is not one of the first FIRST_STEPS, and neither it nor the step before it saves or evaluates. A save or an
    evaluation at every step or every second step is ignored, because it belongs to all steps.
    """
    intervals = (job.training.save_steps, job.training.eval_steps)
    disturbed = any(point.step % interval in (0, 1) for interval in intervals if interval and interval > 2)
    return point.step >= first_step + FIRST_STEPS and not disturbed


def _full_tokens(job: Job) -> int:
    """Return the tokens of a step with sequences of full length."""
    return job.global_batch * job.sequences_per_sample * job.training.cutoff_len


def _same_work(job: Job, timed: Sequence[Point], problems: list[Problem]) -> Job | None:
    """Return the job with the measured sequence length; None where it is not known."""
    tokens = [point.tokens for point in timed if point.tokens]
    if not tokens and not job.training.packing:
        problems.append(Problem(code="calibrate_tokens_unknown", values={"engine": job.engine}))
        return None
    full_tokens = _full_tokens(job)
    length = job.training.cutoff_len if not tokens else round(job.training.cutoff_len * median(tokens) / full_tokens)
    return with_values(job, {"training.cutoff_len": max(1, length), "training.sample_tokens": None})


def _time_ratio(job: Job, step_s: float, problems: list[Problem]) -> float | None:
    # A ratio is to the formulas themselves, which have no level.
    uncalibrated = replace(job.cluster, stack="tuned", calibration=replace(job.cluster.calibration, time_ratio=None))
    seconds = estimate(replace(job, cluster=uncalibrated)).iteration_s
    if seconds is None:
        problems.append(Problem(code="calibrate_no_speed", field="cluster.gpu", values={"gpu": str(job.cluster.gpu)}))
        return None
    if resolve_model(job.model).vision and job.training.images_per_sample:
        values = {"images": job.training.images_per_sample, "pixels": f"{job.training.image_max_pixels:,}"}
        problems.append(Problem(code="calibrate_images_assumed", severity="warning", values=values))
    ratio = _plausible(step_s / seconds, 0.01, 100, problems)
    error = calibration_figures().typical_error
    if ratio is not None and abs(ratio - 1) < error:
        scatter = {"error": f"{100 * error:.0f}"}
        problems.append(Problem(code="calibrate_within_error", severity="note", values=scatter))
    return ratio


def _memory_ratio(
    job: Job, predicted: Estimate, timed: Sequence[Point], reserved: Sequence[float], problems: list[Problem]
) -> float | None:
    if not reserved:
        problems.append(Problem(code="calibrate_no_memory", severity="note"))
        return None
    longest = max((point.tokens for point in timed if point.tokens), default=0)
    full_tokens = _full_tokens(job)
    if not job.training.packing and longest < FULL * full_tokens:
        values = {"longest": longest * job.training.cutoff_len // full_tokens, "cutoff": job.training.cutoff_len}
        problems.append(Problem(code="calibrate_short_samples", severity="warning", values=values))
        return None
    return _plausible(max(reserved) / predicted.peak_gib, 0.1, 10, problems)


def _plausible(ratio: float, low: float, high: float, problems: list[Problem]) -> float | None:
    """Return a plausible ratio, else None with a problem: the run did other work than was estimated."""
    if low <= ratio <= high:
        return ratio
    problems.append(Problem(code="calibrate_far_off", values={"ratio": f"{ratio:.3g}"}))
    return None
