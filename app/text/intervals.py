"""The 80 % interval of an estimate: texts for the command line, figures for the scripts of the page."""

from collections.abc import Iterable, Iterator, Mapping

from app.text import t
from backend.estimate import Estimate
from backend.estimate.interval import (
    is_memory_assumed,
    memory_interval,
    time_interval,
    unknown_for_memory,
    unknown_for_time,
)
from backend.estimate.time.calibrated import is_of_this_training, is_timed, reserved_ratio
from backend.job.job import Job
from backend.job.presets import Interval, intervals

Error = Mapping[str, float | int | tuple[str, ...] | None]


def range_words(low: float | None, high: float | None, lang: str) -> str:
    """Return an interval as "x to y", with two or three digits; "up to y" without a lower end, a dash without both."""
    if high is None:
        return "–"
    if low is None:
        return t(lang, "accuracy.up_to", high=_short(high))
    return t(lang, "accuracy.beside", low=_short(low), high=_short(high))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def hours_words(estimate: Estimate, lang: str) -> str:
    """Return the interval of the hours of the run; without a lower end if the lengths of samples are not known."""
    low = None if "lengths" in estimate.time_unknown else estimate.hours_low
    return range_words(low, estimate.hours_high, lang)


def time_error(job: Job, estimate: Estimate | None) -> Error | None:
    """Return the factors `low` and `high` of the times, and the `sources` that they come from. None if no times are
    known.

    `step_low` and `hours_low` take the place of `low` for the seconds of a step and the hours of the run. They are None
    if the lengths of samples are not known, so that these are upper bounds. `unknown` names what makes the interval
    wider. The interval of times that a run of the same training calibrates has no
    `sources`.
    """
    if estimate is None or estimate.iteration_s is None:
        return None
    interval, unknown = time_interval(job), unknown_for_time(job)
    factors = _factors(interval, calibrated=is_timed(job.cluster) and is_of_this_training(job))
    hours_low = None if "lengths" in unknown else interval.low
    step_low = interval.low if job.training.packing else hours_low
    return {**factors, "step_low": step_low, "hours_low": hours_low, "unknown": unknown}


def memory_error(job: Job) -> Error | None:
    """Return the same of the memory that a GPU needs; None if it is assumed."""
    if is_memory_assumed(job):
        return None
    factors = _factors(memory_interval(job), calibrated=reserved_ratio(job) is not None and is_of_this_training(job))
    return {**factors, "unknown": unknown_for_memory(job)}


def time_error_words(job: Job, estimate: Estimate, lang: str) -> Iterator[str]:
    """Yield the interval of the times if they are known."""
    error = time_error(job, estimate)
    if error is None:
        return
    low, high = estimate.iteration_s_low or 0.0, estimate.iteration_s_high or 0.0
    seconds = "accuracy.seconds" if error["step_low"] else "accuracy.seconds.up_to"
    yield t(lang, seconds, low=f"{low:.3g}", high=f"{high:.3g}")
    if estimate.hours_low and estimate.hours_high:
        hours = "accuracy.hours" if error["hours_low"] else "accuracy.hours.up_to"
        yield t(lang, hours, low=f"{estimate.hours_low:,.1f}", high=f"{estimate.hours_high:,.1f}")
    yield _sentence("time", error, lang)
    yield from _unknown_words("time", estimate.time_unknown, lang)


def memory_error_words(job: Job, estimate: Estimate, lang: str) -> Iterator[str]:
    """Yield the interval of the memory, or that it is assumed."""
    error = memory_error(job)
    if error is None:
        yield t(lang, "accuracy.memory.assumed")
        return
    if estimate.need_gib_low is not None and estimate.need_gib_high is not None:
        yield t(lang, "accuracy.gib", low=f"{estimate.need_gib_low:,.1f}", high=f"{estimate.need_gib_high:,.1f}")
    yield _sentence("memory", error, lang)
    yield from _unknown_words("memory", estimate.memory_unknown, lang)


def _unknown_words(name: str, unknown: Iterable[str], lang: str) -> Iterator[str]:
    """Yield what makes the interval wider, and what would narrow it."""
    for each in unknown:
        yield t(lang, f"accuracy.not_known.{name}.{each}")


def _factors(interval: Interval, *, calibrated: bool) -> Error:
    return {"low": interval.low, "high": interval.high, "sources": None if calibrated else intervals().sources}


def _sentence(name: str, error: Error, lang: str) -> str:
    key = f"accuracy.{name}" if error["sources"] else f"accuracy.{name}.calibrated"
    return t(lang, key, sources=error["sources"], low=f"{error['low']:.0%}", high=f"{error['high']:.0%}")
