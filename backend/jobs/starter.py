"""Starts attempts of runs, first and later ones: preflight, checkpoint, everything written down, supervisors."""

import posixpath
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from backend.cluster import checkpoints
from backend.cluster.group import GroupError
from backend.cluster.node import Node
from backend.engines import render
from backend.engines.checkpoints import Flaw, all_steps, first_flaw, newest_complete
from backend.engines.resharding import bound_to, check_source
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.jobs import launch as launching
from backend.jobs import ledger, queued, restart
from backend.jobs.accepted import accepted
from backend.jobs.checkup import Meeting, examine, meet
from backend.jobs.connections import Connections
from backend.jobs.prepare import prepared
from backend.jobs.records import Source, problem_to_json
from backend.jobs.secrets import SECRETS
from backend.jobs.settle import settle
from backend.jobs.states import EventKind, RunState
from backend.jobs.store import Store

NOT_ACCEPTED = "warnings_not_accepted"
"""The code of a start that its warnings refused; they stand behind it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The checkpoints of a run on its nodes."""

    folder: str
    """Absolute folder of the run's results."""
    steps: tuple[int, ...]
    flaws: Mapping[int, Flaw]
    """Step -> why its checkpoint is not complete; without an entry it is."""
    newest: int | None
    """The last step with a complete one."""
    files: Mapping[int, frozenset[str]]
    """Step -> the files of its checkpoint that any node sees."""
    hidden: bool
    """A node sees no checkpoint at all where others do: its disk may not be there yet."""

    def path(self, step: int) -> str:
        """The folder of the checkpoint of a step."""
        return posixpath.join(self.folder, f"checkpoint-{step}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """Where the next attempt is to begin."""

    step: int | None = None
    """Of a checkpoint; 0: at the start, whatever there is; None: from the newest complete one."""
    at_start_without: bool = False
    """Begin at the start when there is no complete checkpoint; otherwise, or when a node does not see what others do,
    that is refused."""


class Starter:
    """Starts one attempt at a time; whoever calls holds the run's launch lock, and the run is in state preflight."""

    def __init__(self, store: Store, connections: Connections, *, grace_s: float, clock: Callable[[], float]) -> None:
        self._store = store
        self._connections = connections
        self._grace_s = grace_s
        self._clock = clock

    def start(self, run: str, meeting: Meeting | None = None) -> None:
        """Start the next attempt; returns when every supervisor has reported.

        What goes wrong is recorded and raised: the run fails, or waits in the queue when it was restarting by itself.
        Warnings of the preflight that nobody accepted stand in the way too (accepted.py).
        """
        try:
            self._start(run, meeting)
        except BaseException as error:  # Ctrl-C too: what was started is stopped before it is raised again
            self._record_failure(run, error)
            raise

    def find_checkpoints(self, run: str, meeting: Meeting | None = None) -> Found:
        """Look on all nodes of a run. ProblemsError when one of them cannot be asked."""
        job = self._job(run)
        nodes = _all_nodes(meeting or meet(job, self._connections))
        try:
            seen = checkpoints.look(job, nodes, results_of(job, run))
        except GroupError as error:
            raise ProblemsError(error.problems) from error
        steps = {rank: one.steps for rank, one in seen.items()}
        flaws = {step: flaw for step in all_steps(steps) if (flaw := first_flaw(job, step, steps)) is not None}
        files = {
            step: frozenset(file for one in steps.values() if step in one for file in one[step].files)
            for step in all_steps(steps)
        }
        folder, newest = seen[0].folder, newest_complete(job, steps)
        hidden = any(steps.values()) and not all(steps.values())
        return Found(folder=folder, steps=tuple(files), flaws=flaws, newest=newest, files=files, hidden=hidden)

    def find_source(self, run: str, step: int | None, job: Job | None = None) -> Source:
        """The checkpoint of a run that another can begin with: the newest complete one, or that of a step.

        ProblemsError when there is none, when the plan of the other (`job`) cannot load it, or when one of its nodes
        does not see it.
        """
        before, found = self._job(run), self.find_checkpoints(run)
        chosen = self.choose(run, found, Wish(step=step))
        values: dict[str, object] = {"run": run, "folder": found.folder, "step": chosen}
        if chosen is None:
            raise ProblemsError([Problem(code="no_checkpoint", values=values)])
        files = found.files[chosen]
        source = Source(run=run, step=chosen, folder=found.path(chosen), bound=bound_to(before, files))
        if job is not None and (problems := check_source(before, job, source.bound)):
            raise ProblemsError(problems)
        if job is not None and job.cluster.hosts != before.cluster.hosts:
            self._refuse_unless_seen(job, results_of(before, run), chosen, files, values)
        return source

    def _refuse_unless_seen(
        self, job: Job, folder: str, step: int, files: frozenset[str], values: Mapping[str, object]
    ) -> None:
        """Other nodes than those that wrote it must see all of it."""
        try:
            seen = checkpoints.look(job, _all_nodes(meet(job, self._connections)), folder)
        except GroupError as error:
            raise ProblemsError(error.problems) from error
        for rank, one in seen.items():
            saved = one.steps.get(step)
            if lacking := sorted(files - (saved.files if saved else frozenset())):
                node = queued.addresses_of(job)[rank]
                told = {**values, "file": lacking[0], "node": node}
                raise ProblemsError([Problem(code="checkpoint_incomplete", node=node, values=told)])

    def choose(self, run: str, found: Found, wish: Wish) -> int | None:
        """The step to go on from; None for the start. ProblemsError: no_checkpoint, checkpoint_incomplete."""
        if wish.step == 0:
            return None
        if wish.step is None and found.newest is None and wish.at_start_without and not found.hidden:
            return None
        if wish.step is None and found.newest is not None:
            return found.newest
        values: dict[str, object] = {"run": run, "folder": found.folder, "step": wish.step}
        if wish.step is None and not found.steps:
            raise ProblemsError([Problem(code="no_checkpoint", values=values)])
        step = found.steps[-1] if wish.step is None else wish.step
        if step not in found.steps:
            raise ProblemsError([Problem(code="checkpoint_missing", values={**values, "steps": list(found.steps)})])
        if step in found.flaws:
            flaw = found.flaws[step]
            node = queued.addresses_of(self._job(run))[flaw.rank]
            values |= {"step": step, "file": flaw.file, "node": node}
            code = "checkpoint_damaged" if flaw.damaged else "checkpoint_incomplete"
            raise ProblemsError([Problem(code=code, node=node, values=values)])
        return step

    def _start(self, run: str, meeting: Meeting | None) -> None:
        job = self._job(run)
        with self._store.read() as connection:
            previous = ledger.newest_attempt(connection, run)
            source = ledger.source_of(connection, run)
            wish = wish_of(connection, run)
            may_pass = accepted(ledger.events(connection, run))
            needed = ledger.secret_names(connection, run, previous)
        secrets = SECRETS.taken()
        if gone := sorted(set(needed) - set(secrets.names())):
            raise ProblemsError([Problem(code="secrets_gone", values={"run": run, "names": ", ".join(gone)})])
        meeting = meeting or meet(job, self._connections)
        nodes = _all_nodes(meeting)
        try:
            step = found = None
            if previous:
                settle(self._store, run, previous, job, nodes, grace_s=self._grace_s, clock=self._clock)
                found = self.find_checkpoints(run, meeting)
                step = self.choose(
                    run, found, replace(wish, at_start_without=wish.at_start_without or source is not None)
                )
            report = examine(job, meeting, launching.candidate_ports(job))
            if report.problems:
                raise ProblemsError(report.problems)
            if new := report.not_accepted(may_pass):
                raise ProblemsError([Problem(code=NOT_ACCEPTED), *new])
            if report.warnings:
                passed = [problem_to_json(one) for one in report.warnings]
                self._tell(run, EventKind.WARNINGS_PASSED, None, {"warnings": passed})
            if found:
                self._set_aside(run, job, nodes, found, step, previous + 1)
            checkpoint = found.path(step) if found and step is not None else None
            if checkpoint is None and source is not None and wish.step != 0:
                step, checkpoint = source["step"], source["folder"]
            place = launching.make_place(job, run, previous + 1, report.facts, report.port, checkpoint)
            attempt = launching.Attempt(
                run=run,
                number=previous + 1,
                job=job,
                place=place,
                rendered=prepared(job, render(job, place), place, nodes, report.facts),
                records=launching.make_records(job, place, report.facts),
                grace_s=self._grace_s,
                secrets=secrets,
                checkpoint_step=step,
            )
            launching.record_attempt(self._store, attempt, self._clock())
            launching.start_all(attempt, nodes, lambda *told: self._tell(run, *told))
        except GroupError as error:
            raise ProblemsError(error.problems) from error
        self._tell(run, EventKind.STARTED)

    def _set_aside(
        self, run: str, job: Job, nodes: Mapping[int, Node], found: Found, step: int | None, number: int
    ) -> None:
        """Rename what lies behind the checkpoint: trainers count it, and one that is told nothing would take it."""
        later = [one for one in found.steps if one > (step or 0)]
        if later:
            checkpoints.set_aside(job, nodes, found.folder, later, f"before-attempt-{number}-")
            self._tell(run, EventKind.CHECKPOINTS_SET_ASIDE, None, {"steps": later})

    def _record_failure(self, run: str, error: BaseException) -> None:
        """A restart that could not start anything waits; everything else ends the run, and its watch the processes."""
        interrupted = Problem(code="launch_interrupted")
        problem = error.problems[0] if isinstance(error, ProblemsError) else interrupted

        def write(connection: sqlite3.Connection) -> None:
            now = self._clock()
            state = ledger.state_of(connection, run)
            if state is RunState.PREFLIGHT and restart.wait_again(connection, run, problem, now):
                return
            records = ledger.nodes(connection, run, ledger.newest_attempt(connection, run))
            rank = next((record.rank for record in records if record.address == problem.node), None)
            detail: dict[str, object] = {"problem": problem_to_json(problem)}
            if isinstance(error, ProblemsError) and problem.code == NOT_ACCEPTED:
                detail["warnings"] = [problem_to_json(one) for one in error.problems[1:]]
            ledger.append(connection, run, EventKind.FAILING, time=now, rank=rank, detail=detail)

        self._store.write(write)

    def _tell(
        self, run: str, kind: EventKind, rank: int | None = None, detail: Mapping[str, object] | None = None
    ) -> None:
        self._store.write(
            lambda connection: ledger.append(connection, run, kind, time=self._clock(), rank=rank, detail=detail)
        )

    def _job(self, run: str) -> Job:
        with self._store.read() as connection:
            return ledger.job_of(connection, run)


def results_of(job: Job, run: str) -> str:
    """Where the engine of a run writes its checkpoints."""
    return f"{(job.training.output_dir or '').rstrip('/')}/{run}"


def wish_of(connection: sqlite3.Connection, run: str) -> Wish:
    """Where the next attempt is to begin: as a user asked, or as far on as possible after a restart."""
    kinds = (EventKind.RESUMED, EventKind.RESTARTING)
    newest = next((event for event in reversed(ledger.events(connection, run)) if event.kind in kinds), None)
    if newest is not None and newest.kind is EventKind.RESUMED:
        return Wish(step=newest.detail.get("checkpoint"))
    return Wish(at_start_without=True)


def _all_nodes(meeting: Meeting) -> Mapping[int, Node]:
    if meeting.failures:
        raise ProblemsError(meeting.problems)
    return meeting.nodes
