"""Exports that pages request: one per run at a time, in a thread of the server. Every tab sees the progress."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from app.text import render_problem, without_commands
from app.text.exports import export_words
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import Exported
from backend.runs.records import RunSnapshot
from backend.runs.redact import redact
from backend.runs.states import RunState

_log = logging.getLogger(__name__)

LINE_LENGTH = 160
"""Maximum letters of a shown line of the converter."""


class Exporting(Protocol):
    """The part of the controller that exports need."""

    def export(self, run_id: str, report: Callable[[str], object]) -> Exported: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """The state of one export."""

    line: str = ""
    exported: Exported | None = None
    problem: Problem | None = None

    @property
    def is_busy(self) -> bool:
        return self.exported is None and self.problem is None


class Exports:
    """The exports of a server. Thread-safe. The list ends with the server; the nodes keep the files."""

    def __init__(self, controller: Exporting) -> None:
        self._controller = controller
        self._lock = threading.Lock()
        self._exports: dict[str, Export] = {}

    def start(self, run: str) -> None:
        """Start the export of a run, unless it runs or is done."""
        with self._lock:
            export = self._exports.get(run)
            if export is not None and export.problem is None:
                return
            self._exports[run] = Export()
        threading.Thread(target=self._export, args=(run,), name=f"export {run}", daemon=True).start()

    def view(self, run: RunSnapshot, lang: str) -> Mapping[str, Any] | None:
        """Return the view of a page: offer, progress or result. None if there is nothing to export."""
        with self._lock:
            export = self._exports.get(run.id)
        if export is None:
            can_export = run.state.is_final and run.state is not RunState.LOST and run.step is not None
            return {"phase": "offer"} if can_export else None
        if export.exported is not None:
            return {"phase": "done", "words": export_words(export.exported, lang), "serve": list(export.exported.serve)}
        if export.problem is not None:
            return {"phase": "failed", "problem": render_problem(lang, export.problem)}
        return {"phase": "working", "line": without_commands(export.line)}

    def _export(self, run: str) -> None:
        try:
            exported = self._controller.export(run, lambda line: self._set(run, line=redact(line)[:LINE_LENGTH]))
            self._set(run, exported=exported)
        except ProblemsError as error:
            self._set(run, problem=error.problems[0])
        except Exception:  # the page must show every error of the thread
            _log.exception("exporting %s", run)
            self._set(run, problem=Problem(code="internal_error"))

    def _set(self, run: str, **changes: Any) -> None:
        with self._lock:
            self._exports[run] = replace(self._exports[run], **changes)
