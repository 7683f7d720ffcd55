"""Changes of the job that the cause of a failed run offers, each with the estimated memory before and after."""

from collections.abc import Mapping
from typing import Any

from app.monitor.shared_answers import Shared
from app.services import Services
from app.text import t
from app.wizard.fields import table, value_words
from backend.estimate import estimate
from backend.job.job import Job
from backend.job.mapping import get_value, with_values
from backend.job.problems import ProblemsError
from backend.runs.api import fixes_of_cause
from backend.runs.records import RunSnapshot

KEPT_S = 3600.0
RUNS_KEPT = 16


class CauseFixes:
    """The changes that failed runs offer. Thread-safe."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._answers: Shared[list[dict[str, Any]]] = Shared(services.clock, fresh_s=KEPT_S, size=RUNS_KEPT)

    def view(self, run: RunSnapshot, lang: str) -> list[Mapping[str, Any]]:
        """Return the words of each change. The position is the number by which the wizard applies it."""
        cause = run.cause
        if cause is None or not run.state.is_final:
            return []
        changes = self._answers.get((run.id, run.attempt, cause.code), lambda: self._changes(run.id, cause.code))
        return [{"words": _words(change, lang), "memory": _memory_words(change, lang)} for change in changes]

    def _changes(self, run: str, code: str) -> list[dict[str, Any]]:
        try:
            with self._services.database.read() as reader:
                job = reader.job(run)
            changes = fixes_of_cause(code, job)
        except ProblemsError:  # another part of the page shows why the job cannot be read
            return []
        before = _memory(job) if changes else None
        return [_change(job, change, before) for change in changes]


def _change(job: Job, change: Mapping[str, Any], before: tuple[float, float] | None) -> dict[str, Any]:
    after = _memory(with_values(job, change))
    values = [(path, get_value(job, path), value) for path, value in change.items()]
    return {"values": values, "memory": None if before is None or after is None else (before[0], *after)}


def _memory(job: Job) -> tuple[float, float] | None:
    """Return (estimated memory of the worst rank, memory of a GPU) in GiB."""
    try:
        figures = estimate(job)
    except ProblemsError:  # the model or the engine has no estimate
        return None
    return figures.reserved_gib + figures.outside_gib, figures.gpu_memory_gib


def _words(change: Mapping[str, Any], lang: str) -> str:
    parts = [
        t(
            lang,
            "monitor.fix.value",
            name=t(lang, f"param.{path}"),
            old=_value(lang, path, old),
            new=_value(lang, path, new),
        )
        for path, old, new in change["values"]
    ]
    return t(lang, "monitor.fix.and").join(parts)


def _memory_words(change: Mapping[str, Any], lang: str) -> str:
    if not change["memory"]:
        return ""
    before, after, capacity = (round(value, 1) for value in change["memory"])
    return t(lang, "monitor.fix.memory", before=before, after=after, capacity=capacity)


def _value(lang: str, path: str, value: object) -> str:
    return value_words(lang, table()[path], value)
