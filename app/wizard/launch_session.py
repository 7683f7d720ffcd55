"""The launch desk: one a server, so that two clicks, two tabs or a reload act on the same check and the same launch.

A green check is a ticket for one launch of exactly the job that was checked. Checks and launches run in a thread of
their own; a page watches them through `state` and `wait`.
"""

import dataclasses
import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import NOT_ACCEPTED, RESTARTS, Missing, PreflightReport, find_missing, warning_key
from backend.runs.controller import Controller
from backend.runs.states import RunState

Phase = Literal["idle", "checking", "checked", "copying", "launching", "launched", "queued"]

Source = tuple[str, int] | None
"""The run and the step of the checkpoint that a launch begins with; None: at the beginning."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskState:
    """What the desk knows at one moment; immutable."""

    version: int = 0
    """Grows with every change."""
    phase: Phase = "idle"
    since: float = 0.0
    """When the phase began."""
    job: Job | None = None
    """What was checked, is being launched, was launched or put into the queue."""
    source: Source = None
    """What that begins with."""
    report: PreflightReport | None = None
    problems: tuple[Problem, ...] = ()
    """Why the newest check or launch could not be done."""
    run: str | None = None
    """The run that the newest launch started, or that waits in the queue."""
    copied: tuple[int, int] = (0, 0)
    """Bytes that a copy has taken, and that it has to take."""

    @property
    def is_busy(self) -> bool:
        return self.phase in ("checking", "copying", "launching")

    def missing_for(self, job: Job | None) -> Missing | None:
        """What the check of exactly this job found that a copy from node 0 can mend."""
        if self.phase != "checked" or self.report is None or self.job != job:
            return None
        return find_missing(self.report.checks)

    def accepted_by(self, accepted: object) -> set[str]:
        """Keys of the check's warnings, where the user has accepted those of this version. ProblemsError."""
        warnings = self.report.warnings if self.report else ()
        if warnings and (isinstance(accepted, bool) or accepted != self.version):
            raise ProblemsError([Problem(code=NOT_ACCEPTED)])
        return {warning_key(one) for one in warnings}

    def is_green_for(self, job: Job | None, source: Source = None) -> bool:
        """Whether a launch of exactly this job from exactly this checkpoint may begin."""
        is_green = self.phase == "checked" and self.report is not None and not self.report.problems
        return is_green and (self.job, self.source) == (job, source)


class Desk:
    """Safe for many threads."""

    def __init__(self, controller: Controller, clock: Callable[[], float]) -> None:
        self._controller = controller
        self._clock = clock
        self._changed = threading.Condition()
        self._state = DeskState()

    def state(self) -> DeskState:
        """The state now."""
        with self._changed:
            return self._state

    def wait(self, version: int, timeout_s: float) -> DeskState:
        """The state once it is newer than `version`, or after the time."""
        with self._changed:
            self._changed.wait_for(lambda: self._state.version > version, timeout_s)
            return self._state

    def check(self, job: Job, source: Source = None) -> None:
        """Begin to check the nodes for this job, and that they see its checkpoint; nothing while at work."""
        with self._changed:
            if self._state.is_busy:
                return
            self._set(phase="checking", job=job, source=source, report=None, problems=(), run=None)
        self._work(lambda: self._check(job, source))

    def accept(self, fingerprints: Collection[str]) -> None:
        """Trust those shown host keys whose fingerprints were confirmed, then check again."""
        with self._changed:
            state = self._state
            if state.phase != "checked" or state.report is None or state.job is None:
                return
            keys = [key for key in state.report.unknown_host_keys if key.fingerprint in fingerprints]
        if keys:
            self._controller.accept_host_keys(keys)
            self.check(state.job, state.source)

    def copy(self, job: Job, source: Source = None) -> None:
        """Begin to copy what the check of exactly this job found missing, then check again; raises ProblemsError."""
        with self._changed:
            report = self._state.report
            if report is None or self._state.missing_for(job) is None:
                raise ProblemsError([Problem(code="nothing_to_copy")])
            self._set(phase="copying", source=source, problems=(), copied=(0, 0))
        self._work(lambda: self._copy(job, source, report))

    def launch(self, job: Job, source: Source = None, *, accepted: object = None) -> None:
        """Begin to launch; raises ProblemsError unless a green check of exactly this job is at hand and unused.

        `accepted`: the version of the state whose warnings the user has accepted. Those of another check, and those
        that only the launch itself finds, have been accepted by nobody.
        """
        with self._changed:
            if not self._state.is_green_for(job, source):
                raise ProblemsError([Problem(code="not_checked")])
            shown = self._state.accepted_by(accepted)
            self._set(phase="launching", problems=())
        self._work(lambda: self._launch(job, source, shown))

    def queue(self, job: Job, source: Source = None, *, accepted: object = None) -> None:
        """Put the job into the queue, unless it waits there from this desk: two tabs queue one run. ProblemsError.

        Where a check of exactly this job is at hand, its warnings must have been accepted as for a launch; those that
        the check at the run's turn finds beside them have been accepted by nobody.
        """
        with self._changed:
            is_same = (self._state.job, self._state.source) == (job, source)
            if self._state.is_busy or (is_same and self.waits(self._state)):
                return
            shown = self._state.accepted_by(accepted) if is_same else set()
            run = self._controller.launch(job, queue=True, restarts=RESTARTS, source=source, accepted_warnings=shown)
            self._set(phase="queued", job=job, source=source, report=None, problems=(), run=run)

    def waits(self, state: DeskState) -> bool:
        """Whether the run that was put into the queue is still there."""
        if state.phase != "queued" or state.run is None:
            return False
        return self._controller.snapshot(state.run).state is RunState.QUEUED

    def _check(self, job: Job, source: Source) -> None:
        report = self._examine(job, source)
        with self._changed:
            self._set(phase="checked", report=report)

    def _examine(self, job: Job, source: Source) -> PreflightReport:
        """The nodes' report; ProblemsError where they are well but cannot begin with the checkpoint."""
        report = self._controller.preflight(job)
        if source is not None and not report.problems:
            self._controller.find_source(*source, job)
        return report

    def _copy(self, job: Job, source: Source, report: PreflightReport) -> None:
        left = self._controller.copy_missing(job, report, self._tell)
        with self._changed:
            self._set(phase="checking", report=None)
        report = self._examine(job, source)
        with self._changed:
            self._set(phase="checked", report=report, problems=left)

    def _tell(self, done: int, total: int) -> None:
        with self._changed:
            if self._state.copied != (done, total):
                self._set(copied=(done, total))

    def _launch(self, job: Job, source: Source, accepted: Collection[str]) -> None:
        run = self._controller.launch(job, restarts=RESTARTS, source=source, accepted_warnings=accepted)
        with self._changed:
            self._set(phase="launched", report=None, run=run)

    def _work(self, act: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                act()
            except ProblemsError as error:
                self._fail(error.problems)
            except Exception:
                _log.exception("the launch desk's work failed")
                self._fail((Problem(code="internal_error"),))

        threading.Thread(target=guarded, name="launch-desk", daemon=True).start()

    def _fail(self, problems: tuple[Problem, ...]) -> None:
        with self._changed:
            self._set(phase="idle", report=None, problems=problems)

    def _set(self, **changes: object) -> None:
        """Replace the state; the condition is held."""
        since = self._clock() if "phase" in changes else self._state.since
        state = dataclasses.replace(self._state, version=self._state.version + 1, since=since, **changes)  # type: ignore[arg-type]
        self._state = state
        self._changed.notify_all()


@lru_cache(maxsize=8)
def desk_of(controller: Controller, clock: Callable[[], float]) -> Desk:
    """The one desk of a controller, whichever page asks."""
    return Desk(controller, clock)
