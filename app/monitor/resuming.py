"""Checkpoints that pages request. A thread of the server finds them on the nodes, and every tab shows them."""

import logging
import threading
from collections.abc import Mapping
from typing import Any

from app.text import render_problem, t
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import Checkpoints
from backend.runs.controller import Controller
from backend.runs.records import RunSnapshot

_log = logging.getLogger(__name__)


class Resuming:
    """The checkpoints of each run that a page requested. Thread-safe."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._lock = threading.Lock()
        self._answers: dict[str, Checkpoints | Problem | None] = {}

    def find(self, run: str) -> None:
        """Start to find the checkpoints of a run on its nodes, unless that is in progress."""
        with self._lock:
            if run in self._answers and self._answers[run] is None:
                return
            self._answers[run] = None
        threading.Thread(target=self._find, args=(run,), name=f"checkpoints {run}", daemon=True).start()

    def view(self, run: RunSnapshot, lang: str) -> Mapping[str, Any] | None:
        """Return the view of a page: offer, progress, checkpoints or problem. None for a run that has not ended."""
        if not run.state.is_final:
            return None
        with self._lock:
            if run.id not in self._answers:
                return {"phase": "offer"}
            checkpoints = self._answers[run.id]
        if checkpoints is None:
            return {"phase": "looking"}
        if isinstance(checkpoints, Problem):
            return {"phase": "failed", "problem": render_problem(lang, checkpoints)}
        rows = [{"step": step, "why": _flaw(checkpoints, step, lang)} for step in reversed(checkpoints.steps)]
        return {"phase": "found", "newest": checkpoints.newest, "folder": checkpoints.folder, "checkpoints": rows}

    def _find(self, run: str) -> None:
        answer: Checkpoints | Problem = Problem(code="internal_error")
        try:
            answer = self._controller.checkpoints(run)
        except ProblemsError as error:
            answer = error.problems[0]
        except Exception:  # the page must show every error of the thread
            _log.exception("looking for checkpoints of %s", run)
        with self._lock:
            self._answers[run] = answer


def _flaw(checkpoints: Checkpoints, step: int, lang: str) -> str:
    flaw = checkpoints.flaws.get(step)
    if flaw is None:
        return ""
    return t(lang, f"monitor.resume.{'damaged' if flaw.damaged else 'incomplete'}", rank=flaw.rank, file=flaw.file)
