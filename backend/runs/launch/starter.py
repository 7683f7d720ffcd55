"""Starts attempts of runs, first and later ones: preflight, checkpoint, everything written down, supervisors."""

import sqlite3
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from backend.cluster.inventory import checkpoints
from backend.cluster.node import Node
from backend.cluster.node_group import GroupError
from backend.engines import render
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.runs.connections import Connections
from backend.runs.launch import launch as launching
from backend.runs.launch.accepted_warnings import accepted
from backend.runs.launch.data_preparation import prepared
from backend.runs.launch.preflight import ConnectedNodes, PreflightReport, examine, meet
from backend.runs.launch.resume import Found, choose, find_checkpoints, wish_of
from backend.runs.rank_secrets import SECRETS
from backend.runs.records import problem_to_json
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, run_store
from backend.runs.store.store import Store
from backend.runs.supervise import restart
from backend.runs.supervise.attempt_cleanup import settle

NOT_ACCEPTED = "warnings_not_accepted"
"""The code of a start that its warnings refused; they stand behind it."""


class Starter:
    """Starts one attempt at a time; whoever calls holds the run's launch lock, and the run is in state preflight."""

    def __init__(self, store: Store, connections: Connections, *, grace_s: float, clock: Callable[[], float]) -> None:
        self._store = store
        self._connections = connections
        self._grace_s = grace_s
        self._clock = clock

    def start(self, run: str, meeting: ConnectedNodes | None = None) -> None:
        """Start the next attempt; returns when every supervisor has reported. One that is stopped meanwhile is refused.

        What goes wrong is recorded and raised: the run fails, or waits in the queue when it was restarting by itself.
        Warnings of the preflight that nobody accepted stand in the way too (accepted_warnings.py).
        """
        try:
            self._start(run, meeting)
        except BaseException as error:  # Ctrl-C too: what was started is stopped before it is raised again
            self._record_failure(run, error)
            raise

    def _start(self, run: str, meeting: ConnectedNodes | None) -> None:
        job = self._job(run)
        with self._store.read() as connection:
            previous = attempts.newest(connection, run)
            source = run_store.source_of(connection, run)
            wish = wish_of(connection, run)
            may_pass = accepted(run_store.events(connection, run))
            needed = attempts.secret_names(connection, run, previous)
        secrets = SECRETS.taken()
        if gone := sorted(set(needed) - set(secrets.names())):
            raise ProblemsError([Problem(code="secrets_gone", values={"run": run, "names": ", ".join(gone)})])
        meeting = meeting or meet(job, self._connections)
        nodes = meeting.all_nodes()
        try:
            step = found = None
            if previous:
                settle(self._store, run, previous, job, nodes, grace_s=self._grace_s, clock=self._clock)
                found = find_checkpoints(job, run, nodes)
                may_begin = wish.at_start_without or source is not None
                step = choose(job, run, found, replace(wish, at_start_without=may_begin))
            report = self._check(run, job, meeting, may_pass)
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
        if not self._tell(run, EventKind.STARTED):
            raise launching.stopped_meanwhile(run)

    def _check(self, run: str, job: Job, meeting: ConnectedNodes, may_pass: Collection[str] | None) -> PreflightReport:
        """The preflight; ProblemsError for what it has against a start, warnings that nobody accepted among it."""
        report = examine(job, meeting, launching.candidate_ports(job))
        if report.problems:
            raise ProblemsError(report.problems)
        if new := report.not_accepted(may_pass):
            raise ProblemsError([Problem(code=NOT_ACCEPTED), *new])
        if report.warnings:
            passed = [problem_to_json(one) for one in report.warnings]
            self._tell(run, EventKind.WARNINGS_PASSED, None, {"warnings": passed})
        return report

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
            state = run_store.state_of(connection, run)
            if state is RunState.PREFLIGHT and restart.wait_again(connection, run, problem, now):
                return
            records = attempts.nodes(connection, run, attempts.newest(connection, run))
            rank = next((record.rank for record in records if record.address == problem.node), None)
            detail: dict[str, object] = {"problem": problem_to_json(problem)}
            if isinstance(error, ProblemsError) and problem.code == NOT_ACCEPTED:
                detail["warnings"] = [problem_to_json(one) for one in error.problems[1:]]
            run_store.append(connection, run, EventKind.FAILING, time=now, rank=rank, detail=detail)

        self._store.write(write)

    def _tell(
        self, run: str, kind: EventKind, rank: int | None = None, detail: Mapping[str, object] | None = None
    ) -> bool:
        return self._store.write(
            lambda connection: run_store.append(connection, run, kind, time=self._clock(), rank=rank, detail=detail)
        )

    def _job(self, run: str) -> Job:
        with self._store.read() as connection:
            return run_store.job_of(connection, run)
