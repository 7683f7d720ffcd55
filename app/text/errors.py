"""The expected error of an estimate: texts for the command line, figures for the scripts of the page."""

from collections.abc import Iterator, Mapping

from app.text import t
from backend.estimate import Estimate
from backend.estimate.time.calibrated import is_timed
from backend.job.job import Job
from backend.job.presets import ExpectedError, expected_errors


def time_error(job: Job, estimate: Estimate | None) -> Mapping[str, float | int | None] | None:
    """Return the median `error`, with `low` and `sources` of expected_errors. None if times are not known.

    Calibrated times have no `low` and `sources`.
    """
    if estimate is None or estimate.time_error is None:
        return None
    low, sources = (None, None) if is_timed(job.cluster) else _origin(expected_errors().time)
    return {"error": estimate.time_error, "low": low, "sources": sources}


def memory_error(estimate: Estimate) -> Mapping[str, float | int] | None:
    """Return the same for memory. None if a run corrects it, because the error of corrected memory is not measured."""
    if estimate.memory_error is None:
        return None
    low, sources = _origin(expected_errors().memory)
    return {"error": estimate.memory_error, "low": low, "sources": sources}


def time_error_words(job: Job, estimate: Estimate, lang: str) -> Iterator[str]:
    """Yield one sentence if times are known."""
    error = time_error(job, estimate)
    if error:
        yield _sentence("time" if error["sources"] else "time.calibrated", error, lang)


def memory_error_words(estimate: Estimate, lang: str) -> Iterator[str]:
    """Yield one sentence if the error is known."""
    error = memory_error(estimate)
    if error:
        yield _sentence("memory", error, lang)


def _origin(expected: ExpectedError) -> tuple[float, int]:
    return expected.low_share, expected_errors().sources


def _sentence(name: str, error: Mapping[str, float | int | None], lang: str) -> str:
    # Whole percentages, because the error is not known more exactly.
    values = {key: f"{value:.0%}" for key in ("error", "low") if (value := error[key]) is not None}
    return t(lang, f"accuracy.{name}", sources=error["sources"], **values)
