"""The 80 % interval of an estimate: of measurements like it, 80 % lie inside.

The factors come from sources that were not used to make the estimates (presets/intervals.yaml).
"""

import math
from collections.abc import Mapping

from backend.estimate.time.calibrated import is_of_this_training, is_timed, reserved_ratio
from backend.job.job import Job
from backend.job.presets import Interval, intervals

CERTAIN = Interval(low=1.0, high=1.0)


def _kind(job: Job) -> str:
    """Return the kind of a job's run: of full training (or of parts of the model), LoRA or QLoRA outside Megatron."""
    if job.traits.is_megatron:
        return "megatron"
    method = job.training.method
    return f"hugging_face_{method}" if method in ("lora", "qlora") else "hugging_face"


def after_runs(factor: float, runs: int) -> float:
    """Return an end of the interval after a correction by the mean of some runs, from that after one run.

    If the logarithms of the ratios of a cluster have the variance V, the error of another plan after a correction by
    the mean of n of them has the variance V (1 + 1/n).
    """
    return math.pow(factor, math.sqrt((1 + 1 / runs) / 2))


def _calibrated(known: Mapping[str, Interval], kind: str, runs: int | None) -> Interval:
    """Return the interval of a kind of run after a run of the same training corrected the estimate."""
    corrected = known[f"calibrated_{kind}"]
    return Interval(low=after_runs(corrected.low, runs or 1), high=after_runs(corrected.high, runs or 1))


def time_interval(job: Job) -> Interval:
    """Return the factors of the job's times."""
    known, cluster = intervals().time, job.cluster
    # LoRA and QLoRA have one interval of time.
    kind = _kind(job).replace("qlora", "lora")
    if is_timed(cluster) and is_of_this_training(job):
        return _calibrated(known, kind, cluster.calibration.time_runs)
    if job.has_fp8_products:
        return known["fp8"]
    return known["tuned"] if cluster.stack == "tuned" and not is_timed(cluster) else known[kind]


def is_memory_assumed(job: Job) -> bool:
    """Return whether no measured run says how far the memory is off, so that it has no interval."""
    return job.training.stage == "grpo"


def memory_interval(job: Job) -> Interval:
    """Return the factors of the need of the job's fullest GPU. For an assumed need they are those of other training:
    a margin by which a plan must fit, and no interval."""
    known, kind = intervals().memory, _kind(job)
    if reserved_ratio(job) is not None and is_of_this_training(job):
        return _calibrated(known, kind, job.cluster.calibration.memory_runs)
    return known[kind]
