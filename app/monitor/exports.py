"""Exports that pages asked for: one a run at a time, in a thread of the server; every tab sees how far it is."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

from app.text import render_problem
from app.text.exports import export_words
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import Exported
from backend.runs.controller import Controller
from backend.runs.records import RunSnapshot
from backend.runs.redact import redact
from backend.runs.states import RunState

_log = logging.getLogger(__name__)

LINE_LENGTH = 160
"""Letters of a converter's line that are shown."""


class Exporting(Protocol):
    """What of a controller is needed."""

    def export(self, run_id: str, tell: Callable[[str], object]) -> Exported: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """One export as it stands."""

    line: str = ""
    made: Exported | None = None
    problem: Problem | None = None

    @property
    def is_busy(self) -> bool:
        return self.made is None and self.problem is None


class Exports:
    """Safe for many threads. What was exported is forgotten with the server; the nodes keep it."""

    def __init__(self, controller: Exporting) -> None:
        self._controller = controller
        self._lock = threading.Lock()
        self._exports: dict[str, Export] = {}

    def begin(self, run: str) -> None:
        """Start the export of a run; nothing while it is under way or done."""
        with self._lock:
            known = self._exports.get(run)
            if known is not None and known.problem is None:
                return
            self._exports[run] = Export()
        threading.Thread(target=self._work, args=(run,), name=f"export {run}", daemon=True).start()

    def of(self, run: RunSnapshot, lang: str) -> Mapping[str, Any] | None:
        """What a page shows: an offer, how far it is, or what came of it; None where there is nothing to export."""
        with self._lock:
            known = self._exports.get(run.id)
        if known is None:
            may = run.state.is_final and run.state is not RunState.LOST and run.step is not None
            return {"phase": "offer"} if may else None
        if known.made is not None:
            return {"phase": "done", "words": export_words(known.made, lang), "serve": list(known.made.serve)}
        if known.problem is not None:
            return {"phase": "failed", "problem": render_problem(lang, known.problem)}
        return {"phase": "working", "line": known.line}

    def _work(self, run: str) -> None:
        try:
            made = self._controller.export(run, lambda line: self._set(run, line=redact(line)[:LINE_LENGTH]))
            self._set(run, made=made)
        except ProblemsError as error:
            self._set(run, problem=error.problems[0])
        except Exception:  # the edge of a thread: the page must hear of it
            _log.exception("exporting %s", run)
            self._set(run, problem=Problem(code="internal_error"))

    def _set(self, run: str, **changes: Any) -> None:
        with self._lock:
            self._exports[run] = replace(self._exports[run], **changes)


@lru_cache(maxsize=8)
def exports_of(controller: Controller) -> Exports:
    """The exports of a controller, whichever page asks."""
    return Exports(controller)
