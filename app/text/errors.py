"""The 80 % interval of an estimate: texts for the command line, figures for the scripts of the page."""

from collections.abc import Iterator, Mapping

from app.text import t
from backend.estimate import Estimate
from backend.estimate.interval import is_memory_assumed, memory_interval, time_interval
from backend.estimate.time.calibrated import is_of_this_training, is_timed, reserved_ratio
from backend.job.job import Job
from backend.job.presets import Interval, intervals

Error = Mapping[str, float | int | None]


def range_words(low: float | None, high: float | None, lang: str) -> str:
    """Return an interval as "x to y", with two or three digits; a dash if it is not known."""
    if low is None or high is None:
        return "–"
    return t(lang, "accuracy.beside", low=_short(low), high=_short(high))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def time_error(job: Job, estimate: Estimate | None) -> Error | None:
    """Return the factors `low` and `high` of the times, and the `sources` that they come from. None if no times are
    known.

    The interval of times that a run of the same training calibrates has no `sources`.
    """
    if estimate is None or estimate.iteration_s is None:
        return None
    return _factors(time_interval(job), calibrated=is_timed(job.cluster) and is_of_this_training(job))


def memory_error(job: Job) -> Error | None:
    """Return the same of the memory that a GPU needs; None if it is assumed."""
    if is_memory_assumed(job):
        return None
    return _factors(memory_interval(job), calibrated=reserved_ratio(job) is not None and is_of_this_training(job))


def time_error_words(job: Job, estimate: Estimate, lang: str) -> Iterator[str]:
    """Yield the interval of the times if they are known."""
    error = time_error(job, estimate)
    if error is None:
        return
    low, high = estimate.iteration_s_low or 0.0, estimate.iteration_s_high or 0.0
    yield t(lang, "accuracy.seconds", low=f"{low:.3g}", high=f"{high:.3g}")
    if estimate.hours_low and estimate.hours_high:
        yield t(lang, "accuracy.hours", low=f"{estimate.hours_low:,.1f}", high=f"{estimate.hours_high:,.1f}")
    yield _sentence("time", error, lang)


def memory_error_words(job: Job, estimate: Estimate, lang: str) -> Iterator[str]:
    """Yield the interval of the memory, or that it is assumed."""
    error = memory_error(job)
    if error is None:
        yield t(lang, "accuracy.memory.assumed")
        return
    if estimate.need_gib_low is not None and estimate.need_gib_high is not None:
        yield t(lang, "accuracy.gib", low=f"{estimate.need_gib_low:,.1f}", high=f"{estimate.need_gib_high:,.1f}")
    yield _sentence("memory", error, lang)


def _factors(interval: Interval, *, calibrated: bool) -> Error:
    return {"low": interval.low, "high": interval.high, "sources": None if calibrated else intervals().sources}


def _sentence(name: str, error: Error, lang: str) -> str:
    key = f"accuracy.{name}" if error["sources"] else f"accuracy.{name}.calibrated"
    return t(lang, key, sources=error["sources"], low=f"{error['low']:.0%}", high=f"{error['high']:.0%}")
