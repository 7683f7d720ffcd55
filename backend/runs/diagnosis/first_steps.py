"""Compares the first steps of an attempt with the 80 % intervals of the estimate that the run was launched with.

A figure outside its interval is reported once per attempt, with the most likely cause. The step time is judged when
rank 0 has made STEPS steps, the memory of each rank when that rank has made them.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import fmean, median
from typing import Any

from backend.estimate import Estimate, estimate
from backend.estimate.interval import is_memory_assumed, memory_interval, time_interval
from backend.estimate.model.lengths import computed_length
from backend.job.job import Job
from backend.job.liger import has_effect
from backend.job.presets import Interval, resolve_model
from backend.job.problems import Problem, ProblemsError
from backend.runs.collect.node_records import GpuOfBeat
from backend.runs.diagnosis.straggler import limited
from backend.runs.records import Point, problem_to_json
from backend.runs.states import EventKind
from backend.runs.store import attempts, metrics, run_store
from backend.runs.tasks.calibration import RunMeasured, measure_run

STEPS = 20
IDLE_PERCENT = 60
"""GPUs with a lower mean utilization wait for something."""
MUCH_COMMUNICATION = 0.2
"""Share of the computed step from which on the network is the likely cause of slow steps, if it was not measured."""
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def outside_interval(
    connection: sqlite3.Connection, run: str, attempt: int, rank: int, rows: Sequence[Mapping[str, Any]], first: int
) -> Iterator[Mapping[str, Any]]:
    """Yield the detail of each event that is due with these new steps of a rank, which are in the store already.

    `first`: the first stored step of the rank in the attempt.
    """
    if all(row["step"] != first + STEPS - 1 for row in rows):
        return
    known = {
        event.detail.get("figure")
        for event in run_store.events_of_attempt(connection, run, attempt, EventKind.OUTSIDE_INTERVAL)
    }
    text = run_store.run_row(connection, run)["job"]
    planned = _planned(text)
    if planned is None:
        return
    job = run_store.run_job(text)
    if rank == 0 and "time" not in known:
        yield from _time(connection, run, attempt, job, planned)
    if "memory" not in known:
        yield from _memory(connection, run, attempt, rank, rows, job, planned)


@lru_cache(maxsize=64)
def _planned(text: str) -> Estimate | None:
    """Return the estimate of the job in a run's row, which all ranks of the run are compared with.

    None for a run without an estimate: an external one, or one whose model is not known.
    """
    try:
        return estimate(run_store.run_job(text))
    except ProblemsError:
        return None


def _time(
    connection: sqlite3.Connection, run: str, attempt: int, job: Job, planned: Estimate
) -> Iterator[Mapping[str, Any]]:
    points = metrics.first_points(connection, run, attempt, count=STEPS)
    measured = measure_run(job, run, points, ())
    if planned.iteration_s is None or measured.step_s is None:
        return
    factors = time_interval(job)
    side = _side(measured.step_s, planned.iteration_s, factors)
    if side is None:
        return
    if _is_explained_by_lengths(measured, factors):
        problem = _lengths(job, points)
    elif side == "low":
        problem = Problem(code="steps_faster")
    else:
        problem = _slow(connection, run, attempt, job, planned, points[0].time)
    yield _detail("time", side, measured.step_s, planned.iteration_s, factors, points[-1].step, problem)


def _memory(
    connection: sqlite3.Connection,
    run: str,
    attempt: int,
    rank: int,
    rows: Sequence[Mapping[str, Any]],
    job: Job,
    planned: Estimate,
) -> Iterator[Mapping[str, Any]]:
    """Judge the memory that torch reserved: of this rank by the upper bound, and with rank 0 that of all by the lower.

    Only steps with full samples can show that a run needs less. An assumed memory has no interval to be outside of.
    """
    if is_memory_assumed(job):
        return
    own = max((row["reserved_gib"] for row in rows if row.get("reserved_gib") is not None), default=None)
    if own is None:
        return
    factors, computed, step = memory_interval(job), planned.reserved_gib, max(row["step"] for row in rows)
    if _side(own, computed, factors) == "high":
        yield _detail("memory", "high", own, computed, factors, step, _more_memory(job))
    elif rank == 0:
        newest = metrics.newest_of_ranks(connection, run, attempt, ranks=job.world_size)
        measured = measure_run(job, run, metrics.first_points(connection, run, attempt, count=STEPS), newest)
        reserved = measured.reserved_gib
        is_known = len(newest) == job.world_size and measured.memory_ratio is not None and reserved is not None
        if is_known and _side(reserved or 0.0, computed, factors) == "low":
            yield _detail("memory", "low", reserved or 0.0, computed, factors, step, Problem(code="memory_lower"))


def _side(measured: float, computed: float, factors: Interval) -> str | None:
    if measured > factors.high * computed:
        return "high"
    return "low" if measured < factors.low * computed else None


def _detail(
    figure: str, side: str, measured: float, computed: float, factors: Interval, step: int, problem: Problem
) -> Mapping[str, Any]:
    return {
        "figure": figure,
        "side": side,
        "step": step,
        "measured": measured,
        "low": factors.low * computed,
        "high": factors.high * computed,
        "problem": problem_to_json(problem),
    }


def _is_explained_by_lengths(measured: RunMeasured, factors: Interval) -> bool:
    """Return whether the estimate of the measured length of samples holds the measured time."""
    same = measured.predicted_step_s
    return same is not None and measured.step_s is not None and _side(measured.step_s, same, factors) is None


def _lengths(job: Job, points: Sequence[Point]) -> Problem:
    tokens = median(point.tokens for point in points if point.tokens)
    samples = job.global_batch * job.sequences_per_sample
    values = {"mean": f"{tokens / samples:,.0f}", "planned": f"{float(computed_length(job)):,.0f}"}
    return Problem(code="steps_other_lengths", field="training.sample_tokens", values=values)


def _slow(connection: sqlite3.Connection, run: str, attempt: int, job: Job, planned: Estimate, began: float) -> Problem:
    """Return the most likely cause of slow steps: what the GPUs report, else the network, else the software."""
    beats = _beats(connection, run, attempt, began)
    held = limited(beats)
    if held:
        addresses = {node.rank: node.address for node in attempts.nodes(connection, run, attempt)}
        values = {"gpus": len(held), "node": addresses[held[0].node], "gpu": held[0].gpu}
        return Problem(code="steps_slow_clocks", values=values)
    gpus = [gpu for of_node in beats.values() for beat in of_node for gpu in beat]
    used = [gpu["utilization"] for gpu in gpus if "utilization" in gpu]
    if used and fmean(used) < IDLE_PERCENT:
        return Problem(code="steps_wait", values={"percent": f"{fmean(used):.0f}"})
    share = sum((planned.communication_s or {}).values()) / (planned.iteration_s or 1.0)
    is_measured = bool(planned.probed_on and job.cluster.calibration.inter_node_bus_gb_per_s)
    if job.cluster.nodes > 1 and share >= MUCH_COMMUNICATION and not is_measured:
        return Problem(code="steps_slow_network", values={"percent": f"{100 * share:.0f}"})
    offered = not job.training.liger and has_effect(job, resolve_model(job.model).model_type)
    return Problem(code="steps_slow_software", values={"case": "liger"} if offered else {})


def _beats(connection: sqlite3.Connection, run: str, attempt: int, began: float) -> dict[int, list[list[GpuOfBeat]]]:
    """Return the GPUs of each node in the heartbeats since `began`, by the clock of node 0."""
    nodes = attempts.nodes(connection, run, attempt)
    since = began - nodes[0].clock_offset_s if nodes else began
    return {node.rank: metrics.recent_gpus(connection, run, attempt, node.rank, since=since) for node in nodes}


def _more_memory(job: Job) -> Problem:
    """Return the most likely cause of more memory than the interval holds."""
    set_by_job = [job.environment[name] for name in _ALLOCATOR if name in job.environment]
    if set_by_job and not any("expandable_segments:True" in text for text in set_by_job):
        return Problem(code="memory_segments", field="environment")
    if resolve_model(job.model).vision and job.training.images_per_sample:
        values = {"images": job.training.images_per_sample, "pixels": f"{job.training.image_max_pixels:,}"}
        return Problem(code="memory_images", field="training.images_per_sample", values=values)
    return Problem(code="memory_software")
