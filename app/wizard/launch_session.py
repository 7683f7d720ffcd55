"""The launch session of a server. Two clicks, two tabs or a reload act on the same check and the same launch.

A passed check allows one launch of exactly the checked job. Checks and launches run in their own thread; a page
watches them through `state` and `wait`.
"""

import dataclasses
import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, get_args

from backend.engines import CheckedJob
from backend.job.job import Job
from backend.job.launch_rules import environment_of
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import (
    NOT_ACCEPTED,
    RESTARTS,
    Missing,
    PreflightReport,
    Repository,
    find_missing,
    lacks_image,
    model_repository,
    warning_key,
)
from backend.runs.controller import Controller
from backend.runs.states import RunState

Busy = Literal["checking", "copying", "pulling", "downloading", "installing", "launching"]
Phase = Busy | Literal["idle", "checked", "launched", "queued"]
BUSY = get_args(Busy)
NO_ENGINE = frozenset({"no_python", "bad_python", "engine_missing", "engine_placeholder"})
"""Codes of a node that has no environment with the engine."""

Source = tuple[str, int] | None
"""The run and the step of the checkpoint that a launch begins with. None: no checkpoint."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchState:
    """The state of the launch session at one moment. Immutable."""

    version: int = 0
    """Grows with every change."""
    phase: Phase = "idle"
    since: float = 0.0
    """When the phase began, by the server's clock."""
    job: Job | None = None
    """The job of the newest check, launch or queue entry."""
    source: Source = None
    """The checkpoint that `job` begins with."""
    report: PreflightReport | None = None
    problems: tuple[Problem, ...] = ()
    """Why the newest check or launch failed."""
    run: str | None = None
    """The run that the newest launch started or put into the queue."""
    copied: tuple[int, int] = (0, 0)
    """(copied bytes, total bytes) of a copy or a download."""
    pulled: tuple[int, int] = (0, 0)
    """(layers that are there, all layers) of a container image, over all nodes."""

    @property
    def is_busy(self) -> bool:
        return self.phase in BUSY

    def missing_for(self, job: Job | None) -> Missing | None:
        """Return what a check of exactly this job found missing and a copy from node 0 can add."""
        if self.phase != "checked" or self.report is None or self.job != job:
            return None
        return find_missing(self.report.checks)

    def lacks_image_for(self, job: Job | None) -> bool:
        """Return whether a check of exactly this job found a node without its container image."""
        if self.phase != "checked" or self.report is None or self.job != job:
            return False
        return lacks_image(self.report.checks)

    def lacks_engine_for(self, job: Job) -> bool:
        """Return whether the job names no environment, or a check of exactly this job found none on a node."""
        scheduler = job.cluster.scheduler
        environments = [environment_of(job, rank) for rank in range(1 if scheduler else len(job.cluster.hosts))]
        in_image = any(environment and environment.container for environment in environments)
        if not environments or in_image or (scheduler and scheduler.container):
            return False
        checks = self.report.checks if self.report and self.job == job else ()
        return None in environments or any(check.problem and check.problem.code in NO_ENGINE for check in checks)

    def downloadable_for(self, job: Job | None) -> Repository | None:
        """Return the repository of the model if a check of exactly this job found that node 0 lacks the model."""
        if job is None or self.phase != "checked" or self.report is None or self.job != job:
            return None
        lacks = any(check.rank == 0 and check.problem and check.problem.code == "model_missing"
                    for check in self.report.checks)  # fmt: skip
        return model_repository(job) if lacks else None

    def accepted_by(self, accepted: object) -> set[str]:
        """Return the keys of the check's warnings. Raises ProblemsError unless the user accepted this version."""
        warnings = self.report.warnings if self.report else ()
        if warnings and (isinstance(accepted, bool) or accepted != self.version):
            raise ProblemsError([Problem(code=NOT_ACCEPTED)])
        return {warning_key(warning) for warning in warnings}

    def is_green_for(self, job: Job | None, source: Source = None) -> bool:
        """Return whether a launch of exactly this job from exactly this checkpoint may begin."""
        is_green = self.phase == "checked" and self.report is not None and not self.report.problems
        return is_green and (self.job, self.source) == (job, source)


class LaunchSession:
    """The checks and launches of a server. Thread-safe."""

    def __init__(self, controller: Controller, clock: Callable[[], float]) -> None:
        self._controller = controller
        self._clock = clock
        self._changed = threading.Condition()
        self._state = LaunchState()
        self._checked: CheckedJob | None = None

    def state(self) -> LaunchState:
        """Return the current state."""
        with self._changed:
            return self._state

    def wait(self, version: int, timeout_s: float) -> LaunchState:
        """Wait until the state is newer than `version`, or for the time, and return it."""
        with self._changed:
            self._changed.wait_for(lambda: self._state.version > version, timeout_s)
            return self._state

    def check(self, job: Job, source: Source = None) -> None:
        """Start to check the nodes for this job and its checkpoint. Does nothing while busy."""
        with self._changed:
            if self._state.is_busy:
                return
            self._set(phase="checking", job=job, source=source, report=None, problems=(), run=None)
        self._start_thread(lambda: self._check(job, source))

    def accept(self, fingerprints: Collection[str]) -> None:
        """Trust the shown host keys with confirmed fingerprints, then check again."""
        with self._changed:
            state = self._state
            if state.phase != "checked" or state.report is None or state.job is None:
                return
            keys = [key for key in state.report.unknown_host_keys if key.fingerprint in fingerprints]
        if keys:
            self._controller.accept_host_keys(keys)
            self.check(state.job, state.source)

    def copy(self, job: Job, source: Source = None) -> None:
        """Start to copy what the check of exactly this job found missing, then check again. Raises ProblemsError."""
        with self._changed:
            report = self._state.report
            if report is None or self._state.missing_for(job) is None:
                raise ProblemsError([Problem(code="nothing_to_copy")])
            self._set(phase="copying", source=source, problems=(), copied=(0, 0))
        self._start_thread(lambda: self._copy(job, source, report))

    def pull(self, job: Job, source: Source = None) -> None:
        """Start to pull the container image of the checked job on all nodes, then check again. Raises ProblemsError."""
        with self._changed:
            if not self._state.lacks_image_for(job):
                raise ProblemsError([Problem(code="not_checked")])
            self._set(phase="pulling", source=source, problems=(), pulled=(0, 0))
        self._start_thread(lambda: self._pull(job, source))

    def download(self, job: Job, source: Source = None) -> None:
        """Start to download the model of the checked job to node 0 and to copy it to the others.

        Raises ProblemsError.
        """
        with self._changed:
            if self._state.downloadable_for(job) is None:
                raise ProblemsError([Problem(code="not_checked")])
            self._set(phase="downloading", source=source, problems=(), copied=(0, 0))
        self._start_thread(lambda: self._download(job, source))

    def install(self, job: Job, source: Source = None) -> None:
        """Start to make the engine's environment on all nodes. Its interpreter is offered as an edit.

        Raises ProblemsError.
        """
        with self._changed:
            if self._state.is_busy or not self._state.lacks_engine_for(job):
                raise ProblemsError([Problem(code="not_checked")])
            self._set(phase="installing", job=job, source=source, report=None, problems=(), copied=(0, 0))
        self._start_thread(lambda: self._install(job))

    def launch(self, job: Job, source: Source = None, *, accepted: object = None) -> None:
        """Start to launch. Raises ProblemsError unless exactly this job passed a check that no launch has used.

        `accepted` is the version of the state whose warnings the user accepted. Warnings of another check, and those
        that only the launch itself finds, are not accepted.
        """
        with self._changed:
            if not self._state.is_green_for(job, source):
                raise ProblemsError([Problem(code="not_checked")])
            warnings = self._state.accepted_by(accepted)
            self._set(phase="launching", problems=())
        self._start_thread(lambda: self._launch(job, source, warnings))

    def queue(self, job: Job, source: Source = None, *, accepted: object = None) -> None:
        """Put the job into the queue, unless it already waits there: two tabs queue one run. Raises ProblemsError.

        If exactly this job was checked, its warnings must be accepted as for a launch. Warnings that only the check
        before the start finds are not accepted.
        """
        with self._changed:
            is_same = (self._state.job, self._state.source) == (job, source)
            if self._state.is_busy or (is_same and self.is_waiting(self._state)):
                return
            warnings = self._state.accepted_by(accepted) if is_same else set()
            checked = self._checked_job(job)
            run = self._controller.launch(
                checked, queue=True, restarts=RESTARTS, source=source, accepted_warnings=warnings
            )
            self._set(phase="queued", job=job, source=source, report=None, problems=(), run=run)

    def is_waiting(self, state: LaunchState) -> bool:
        """Return whether the run that was put into the queue still waits there."""
        if state.phase != "queued" or state.run is None:
            return False
        return self._controller.snapshot(state.run).state is RunState.QUEUED

    def _check(self, job: Job, source: Source) -> None:
        report = self._preflight(job, source)
        with self._changed:
            self._set(phase="checked", report=report)

    def _preflight(self, job: Job, source: Source) -> PreflightReport:
        """Return the nodes' report. Raises ProblemsError if they pass but cannot load the checkpoint."""
        report = self._controller.preflight(self._checked_job(job))
        if source is not None and not report.problems:
            self._controller.find_source(*source, job)
        return report

    def _checked_job(self, job: Job) -> CheckedJob:
        """Return the job of the newest check if it is the same, else evaluate the rules. Raises ProblemsError."""
        with self._changed:
            # repr: True == 1, but an engine may treat them differently.
            if self._checked is None or repr(self._checked.job) != repr(job):
                self._checked = CheckedJob(job)
            return self._checked

    def _copy(self, job: Job, source: Source, report: PreflightReport) -> None:
        problems = self._controller.tasks.copy_missing(job, report, self._report_copied)
        with self._changed:
            self._set(phase="checking", report=None)
        report = self._preflight(job, source)
        with self._changed:
            self._set(phase="checked", report=report, problems=problems)

    def _pull(self, job: Job, source: Source) -> None:
        problems = self._controller.tasks.pull_image(job, self._report_pulled)
        with self._changed:
            self._set(phase="checking", report=None)
        report = self._preflight(job, source)
        with self._changed:
            self._set(phase="checked", report=report, problems=problems)

    def _report_pulled(self, done: int, total: int) -> None:
        with self._changed:
            if self._state.pulled != (done, total):
                self._set(pulled=(done, total))

    def _download(self, job: Job, source: Source) -> None:
        problems = self._controller.tasks.download(job, self._report_copied)
        with self._changed:
            self._set(phase="checking", report=None)
        report = self._preflight(job, source)
        if find_missing(report.checks) is None:
            with self._changed:
                self._set(phase="checked", report=report, problems=problems)
            return
        with self._changed:
            self._set(phase="copying", copied=(0, 0))
        self._copy(job, source, report)

    def _install(self, job: Job) -> None:
        reached = self._controller.reach(job)
        if reached.unknown_host_keys:
            with self._changed:
                report = PreflightReport(unknown_host_keys=reached.unknown_host_keys, problems=reached.problems)
                self._set(phase="checked", report=report)
            return
        installed = self._controller.tasks.install(job, lambda done, total, lines: self._report_copied(done, total))
        values = {"name": installed.name, "python": installed.python}
        edit = {path: python for path, python in installed.edit.items() if "[" not in path}
        note = Problem(code="environment_installed", severity="note", field=next(iter(edit)), values=values, edit=edit)
        with self._changed:
            self._set(phase="idle", report=None, problems=(note, *installed.problems))

    def _report_copied(self, done: int, total: int) -> None:
        with self._changed:
            if self._state.copied != (done, total):
                self._set(copied=(done, total))

    def _launch(self, job: Job, source: Source, accepted: Collection[str]) -> None:
        checked = self._checked_job(job)
        run = self._controller.launch(checked, restarts=RESTARTS, source=source, accepted_warnings=accepted)
        with self._changed:
            self._set(phase="launched", report=None, run=run)

    def _start_thread(self, act: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                act()
            except ProblemsError as error:
                self._fail(error.problems)
            except Exception:
                _log.exception("the launch session's work failed")
                self._fail((Problem(code="internal_error"),))

        threading.Thread(target=guarded, name="launch-session", daemon=True).start()

    def _fail(self, problems: tuple[Problem, ...]) -> None:
        with self._changed:
            self._set(phase="idle", report=None, problems=problems)

    def _set(self, **changes: object) -> None:
        """Replace the state. The caller holds the condition."""
        since = self._clock() if "phase" in changes else self._state.since
        state = dataclasses.replace(self._state, version=self._state.version + 1, since=since, **changes)  # type: ignore[arg-type]
        self._state = state
        self._changed.notify_all()
