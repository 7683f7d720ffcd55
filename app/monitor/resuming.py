"""The checkpoints that pages asked for: looked up on the nodes by a thread of the server, and shown in every tab."""

import logging
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from app.text import render_problem, t
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import Checkpoints
from backend.runs.controller import Controller
from backend.runs.records import RunSnapshot

_log = logging.getLogger(__name__)


class Resuming:
    """What was found for each run that a page asked about; safe for many threads."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._lock = threading.Lock()
        self._found: dict[str, Checkpoints | Problem | None] = {}

    def look(self, run: str) -> None:
        """Begin to look on the nodes of a run; nothing while that is under way."""
        with self._lock:
            if run in self._found and self._found[run] is None:
                return
            self._found[run] = None
        threading.Thread(target=self._work, args=(run,), name=f"checkpoints {run}", daemon=True).start()

    def of(self, run: RunSnapshot, lang: str) -> Mapping[str, Any] | None:
        """What a page shows: an offer, that it looks, the checkpoints, or why there are none to see.

        None for a run that has not ended.
        """
        if not run.state.is_final:
            return None
        with self._lock:
            if run.id not in self._found:
                return {"phase": "offer"}
            found = self._found[run.id]
        if found is None:
            return {"phase": "looking"}
        if isinstance(found, Problem):
            return {"phase": "failed", "problem": render_problem(lang, found)}
        checkpoints = [{"step": step, "why": _flaw(found, step, lang)} for step in reversed(found.steps)]
        return {"phase": "found", "newest": found.newest, "folder": found.folder, "checkpoints": checkpoints}

    def _work(self, run: str) -> None:
        answer: Checkpoints | Problem = Problem(code="internal_error")
        try:
            answer = self._controller.checkpoints(run)
        except ProblemsError as error:
            answer = error.problems[0]
        except Exception:  # the edge of a thread: the page must hear of it
            _log.exception("looking for checkpoints of %s", run)
        with self._lock:
            self._found[run] = answer


def _flaw(found: Checkpoints, step: int, lang: str) -> str:
    flaw = found.flaws.get(step)
    if flaw is None:
        return ""
    return t(lang, f"monitor.resume.{'damaged' if flaw.damaged else 'incomplete'}", rank=flaw.rank, file=flaw.file)


@lru_cache(maxsize=8)
def resuming_of(controller: Controller) -> Resuming:
    """The one of a controller, whichever page asks."""
    return Resuming(controller)
