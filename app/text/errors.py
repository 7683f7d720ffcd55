"""How far an estimate may be off, in words for the command line and in figures for the page's scripts."""

from collections.abc import Iterator, Mapping

from app.text import t
from backend.estimate import Estimate
from backend.estimate.time.calibrated import is_timed
from backend.job.job import Job
from backend.job.presets import ExpectedError, expected_errors


def time_error(job: Job, found: Estimate | None) -> Mapping[str, float | int | None] | None:
    """`error`, the median; `low` and `sources` as in expected_errors, null where a run corrects times.

    None where times are not known.
    """
    if found is None or found.time_error is None:
        return None
    low, sources = (None, None) if is_timed(job.cluster) else _origin(expected_errors().time)
    return {"error": found.time_error, "low": low, "sources": sources}


def memory_error(found: Estimate) -> Mapping[str, float | int] | None:
    """The same for memory; None if a run corrects it, because nobody has measured the error of corrected memory."""
    if found.memory_error is None:
        return None
    low, sources = _origin(expected_errors().memory)
    return {"error": found.memory_error, "low": low, "sources": sources}


def time_error_words(job: Job, found: Estimate, lang: str) -> Iterator[str]:
    """A sentence where times are known."""
    known = time_error(job, found)
    if known:
        yield _sentence("time" if known["sources"] else "time.calibrated", known, lang)


def memory_error_words(found: Estimate, lang: str) -> Iterator[str]:
    """A sentence where the error is known."""
    known = memory_error(found)
    if known:
        yield _sentence("memory", known, lang)


def _origin(expected: ExpectedError) -> tuple[float, int]:
    return expected.low_share, expected_errors().sources


def _sentence(name: str, known: Mapping[str, float | int | None], lang: str) -> str:
    # A whole percentage: more digits would promise too much.
    values = {key: f"{value:.0%}" for key in ("error", "low") if (value := known[key]) is not None}
    return t(lang, f"accuracy.{name}", sources=known["sources"], **values)
