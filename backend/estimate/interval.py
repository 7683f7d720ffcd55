"""The 80 % interval of an estimate: of measurements like it, 80 % lie inside.

The factors come from sources that were not used to make the estimates (presets/intervals.yaml).
"""

from backend.estimate.time.calibrated import is_timed, reserved_ratio
from backend.job.job import Job
from backend.job.presets import Interval, intervals

CERTAIN = Interval(low=1.0, high=1.0)


def _family(job: Job) -> str:
    return "megatron" if job.traits.is_megatron else "hugging_face"


def time_interval(job: Job) -> Interval:
    """Return the factors of the job's times."""
    known = intervals().time
    if is_timed(job.cluster):
        return known["calibrated"]
    return known["tuned" if job.cluster.stack == "tuned" else _family(job)]


def memory_interval(job: Job) -> Interval:
    """Return the factors of the need of the job's fullest GPU."""
    known = intervals().memory
    return known["calibrated" if reserved_ratio(job) is not None else _family(job)]
