"""The 80 % interval of an estimate: of measurements like it, 80 % lie inside.

The factors come from sources that were not used to make the estimates (presets/intervals.yaml).
"""

import math
from statistics import NormalDist

from backend.estimate.time.calibrated import is_of_this_training, is_timed, reserved_ratio
from backend.job.batch import padding
from backend.job.job import Job
from backend.job.lengths import SHORT_MEAN, cut_mean, full_samples
from backend.job.presets import Interval, intervals


def _memory_kind(job: Job) -> str:
    """Return the kind of a job's run: its engine's family with LoRA, QLoRA, or full training of the model or parts."""
    family, method = "megatron" if job.traits.is_megatron else "hugging_face", job.training.method
    return f"{family}_{method}" if method in ("lora", "qlora") else family


def _time_kind(job: Job) -> str:
    """Return the kind of a job's run: LoRA and QLoRA have one interval of time, and Megatron has one for all."""
    return "megatron" if job.traits.is_megatron else _memory_kind(job).replace("qlora", "lora")


PRIOR_RUNS = 3
"""How many runs the published scatter of a cluster's ratios counts as, beside that of the cluster's own runs."""
_QUANTILE = NormalDist().inv_cdf(0.9)


def after_runs(corrected: Interval, runs: int | None, spread: float | None) -> Interval:
    """Return the interval after a correction by the mean of some runs, from that after one run.

    If the logarithms of the ratios of a cluster have the variance V, the error of another plan after a correction by
    the mean of n of them has the variance V (1 + 1/n). V differs between clusters and trainings. So it is the mean of
    the published one, which `corrected` holds, and of the square of `spread`, the standard deviation of the own runs
    (scaled inverse chi-squared prior, https://en.wikipedia.org/wiki/Conjugate_prior). The interval stays if several
    runs have no known spread.
    """
    count = runs or 1
    if count == 1 or spread is None:
        return corrected
    published = (math.log(corrected.high / corrected.low) / 2 / _QUANTILE) ** 2 / 2
    own = (PRIOR_RUNS * published + (count - 1) * spread**2) / (PRIOR_RUNS + count - 1)
    scale = math.sqrt(own / published * (1 + 1 / count) / 2)
    return Interval(low=math.pow(corrected.low, scale), high=math.pow(corrected.high, scale))


def time_interval(job: Job) -> Interval:
    """Return the factors of the job's times, for the work that the estimate computes."""
    known, cluster = intervals().time, job.cluster
    calibration = cluster.calibration
    kind, timed = _time_kind(job), is_timed(cluster)
    if timed and is_of_this_training(job):
        return after_runs(known[f"calibrated_{kind}"], calibration.time_runs, calibration.time_spread)
    if job.has_fp8_products:
        return known["fp8"]
    return known["tuned"] if cluster.stack == "tuned" and not timed else known[kind]


def shortest_share(job: Job) -> float:
    """Return the tokens of short samples over those of full ones if the lengths are not known, else 1.

    Steps of samples that are not packed, and hours, are lower by it than their interval for full samples.
    """
    if job.training.sample_tokens is not None:
        return 1.0
    return cut_mean(SHORT_MEAN, job.training.cutoff_len) / job.training.cutoff_len


def is_memory_assumed(job: Job) -> bool:
    """Return whether no measured run says how far the memory is off, so that it has no interval."""
    return job.training.stage == "grpo"


def memory_interval(job: Job) -> Interval:
    """Return the factors of the need of the job's GPU with the most memory in use.

    For an assumed need they are those of other training: a margin by which a plan must fit, and no interval.
    """
    known, kind, calibration = intervals().memory, _memory_kind(job), job.cluster.calibration
    if _is_reserved_by_own_run(job):
        return after_runs(known[f"calibrated_{kind}"], calibration.memory_runs, calibration.memory_spread)
    return known[f"{LENGTHS[_lengths(job)]}{kind}"]


LENGTHS = {"fixed": "fixed_lengths_", "measured": "", "unknown": "unknown_lengths_"}
"""What is known of the lengths of samples, and the beginning of the names of the intervals of memory."""


def _lengths(job: Job) -> str:
    """Return what is known of the lengths of samples: they are equal (fixed), measured, or unknown.

    Lengths are unknown, too, if a mean is known, but no sample is expected to reach cutoff_len, for which memory is
    computed with padding.
    """
    training = job.training
    if training.packing:
        return "fixed"
    if training.sample_tokens is None:
        return "unknown"
    draws = (training.samples or 0) * training.num_train_epochs
    pads, mean = padding(job) != "nothing", training.sample_tokens
    return "unknown" if pads and draws and full_samples(mean, training.cutoff_len, draws) < 1 else "measured"


def unknown_for_memory(job: Job) -> tuple[str, ...]:
    """Return what is not known of the job and makes the interval of memory wider: lengths."""
    if is_memory_assumed(job) or _is_reserved_by_own_run(job):
        return ()
    return ("lengths",) if _lengths(job) == "unknown" else ()


def unknown_for_time(job: Job) -> tuple[str, ...]:
    """Return what is not known of the job and makes the intervals of time wider: lengths, stack.

    The network is not among them: published runs across nodes are not further off than those in a node.
    """
    is_as_run = job.cluster.stack == "as_run" and not _is_timed_by_own_run(job)
    lengths = ("lengths",) if job.training.sample_tokens is None else ()
    return (*lengths, "stack") if is_as_run and not job.has_fp8_products else lengths


def _is_timed_by_own_run(job: Job) -> bool:
    return is_timed(job.cluster) and is_of_this_training(job)


def _is_reserved_by_own_run(job: Job) -> bool:
    return reserved_ratio(job) is not None and is_of_this_training(job)
