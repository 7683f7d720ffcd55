"""Start of an attempt: preflight, choice of the checkpoint, record in the store, start of the supervisors."""

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backend.cluster.inventory import checkpoints
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import GroupError
from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.cluster.preflight.packages import lacking_metrics
from backend.engines import CheckedJob, render
from backend.engines.slurm import with_allocation
from backend.job.cluster import Host
from backend.job.job import Job
from backend.job.launch_rules import own_field
from backend.job.problems import Problem, ProblemsError
from backend.runs.connections import Connections
from backend.runs.launch import launch
from backend.runs.launch.accepted_warnings import accepted_keys
from backend.runs.launch.data_preparation import prepared
from backend.runs.launch.derived_start import make_attempt
from backend.runs.launch.preflight import ConnectedNodes, PreflightReport, connect_nodes, run_preflight
from backend.runs.launch.resume import Checkpoints, ResumePolicy, choose_checkpoint, find_checkpoints, resume_policy_of
from backend.runs.launch.slurm_launch import submit_all
from backend.runs.rank_secrets import SECRETS, ApiKeys, TakenSecrets
from backend.runs.records import problem_to_json
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, derived_runs, run_store
from backend.runs.store.derived_runs import DerivedRun
from backend.runs.store.node_replacement import cordons, job_on_nodes
from backend.runs.store.store import Store
from backend.runs.supervise import restart
from backend.runs.supervise.attempt_cleanup import clean_up
from backend.runs.tasks.one_off_task import read_facts

NOT_ACCEPTED = "warnings_not_accepted"
"""Problem code of a start that was refused because of warnings. The warnings follow this problem."""


@dataclass(frozen=True)
class _Before:
    """What the store knows of a run before its next attempt.

    `previous`: the number of the newest attempt, 0 for none. `hosts`: those of that attempt. `source`: the checkpoint
    of another run that this run continues.
    """

    job: Job
    previous: int
    hosts: Sequence[Host]
    secret_names: Collection[str]
    source: Mapping[str, Any] | None
    policy: ResumePolicy
    accepted: Collection[str] | None


class Starter:
    """Starts one attempt at a time. The caller holds the launch lock of the run, and the run is in state preflight."""

    def __init__(
        self,
        store: Store,
        connections: Connections,
        accepted: AcceptedConfigurations,
        *,
        keys: ApiKeys,
        grace_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._connections = connections
        self._accepted = accepted
        self._keys = keys
        self._grace_s = grace_s
        self._clock = clock

    def start(self, run: str, connected: ConnectedNodes | None = None, checked: CheckedJob | None = None) -> None:
        """Start the next attempt; return when every supervisor has reported. Raises ProblemsError.

        A failure is recorded and raised: the run fails, or it waits in the queue when this was an automatic restart.
        Warnings of the preflight that nobody accepted are a failure too (accepted_warnings.py), and so is a stop of
        the run meanwhile. `checked`: the job of the run, if it was checked before.
        """
        try:
            with self._store.read() as connection:
                derived = derived_runs.read(connection, run)
            if derived is None:
                self._start(run, connected, checked)
            else:
                self._start_derived(derived)
        except BaseException as error:  # Ctrl-C too: the supervisors must be stopped first
            self._record_failure(run, error)
            raise

    def _start(self, run: str, connected: ConnectedNodes | None, checked: CheckedJob | None) -> None:
        before = self._before(run)
        job = before.job
        secrets = SECRETS.taken()
        if missing := sorted(set(before.secret_names) - set(secrets.names())):
            raise ProblemsError([Problem(code="secrets_gone", values={"run": run, "names": ", ".join(missing)})])
        connected = connected or connect_nodes(job, self._connections)
        try:
            attempt = self._attempt(run, before, connected, checked, secrets)
            launch.record_attempt(self._store, attempt, self._clock())
            nodes = connected.all_nodes()
            if job.cluster.scheduler is None:
                launch.start_all(attempt, nodes, lambda *event: self._record(run, *event))
            else:
                submit_all(attempt, nodes[0], lambda *event: self._record(run, *event))
        except (GroupError, NodeError) as error:
            problems = error.problems if isinstance(error, GroupError) else (error.problem,)
            raise ProblemsError([replace(p, field=own_field(job, p.field)) for p in problems]) from error
        if job.cluster.scheduler is not None:
            with self._store.read() as connection:
                is_starting = run_store.state_of(connection, run) is RunState.STARTING
        else:
            is_starting = self._record(run, EventKind.STARTED)
        if not is_starting:
            raise launch.stopped_meanwhile(run)

    def _start_derived(self, derived: DerivedRun) -> None:
        """Start the one attempt of a derived run."""
        with self._store.read() as connection:
            job = job_on_nodes(connection, derived.run)
        nodes = connect_nodes(job, self._connections).all_nodes()
        try:
            facts = read_facts(job, nodes)
            attempt = make_attempt(derived, job, nodes[0], facts[0], self._keys.new(derived.run), grace_s=self._grace_s)
            launch.record_attempt(self._store, attempt, self._clock())
            note = lacking_metrics(job, facts[0], nodes[0].name) if derived.kind == "evaluation" else None
            if note is not None:
                self._record(derived.run, EventKind.WARNINGS_PASSED, None, {"warnings": [problem_to_json(note)]})
            launch.start_all(attempt, nodes, lambda *event: self._record(derived.run, *event))
        except GroupError as error:
            raise ProblemsError(error.problems) from error
        except NodeError as error:
            raise ProblemsError([error.problem]) from error
        if not self._record(derived.run, EventKind.STARTED):
            raise launch.stopped_meanwhile(derived.run)

    def _before(self, run: str) -> _Before:
        with self._store.read() as connection:
            previous = attempts.newest(connection, run)
            return _Before(
                job=job_on_nodes(connection, run),
                previous=previous,
                hosts=job_on_nodes(connection, run, previous).cluster.connected_hosts,
                secret_names=attempts.secret_names(connection, run, previous),
                source=run_store.source_of(connection, run),
                policy=resume_policy_of(connection, run),
                accepted=accepted_keys(run_store.events(connection, run)),
            )

    def _attempt(
        self, run: str, before: _Before, connected: ConnectedNodes, checked: CheckedJob | None, secrets: TakenSecrets
    ) -> launch.Attempt:
        """Return the next attempt after the preflight. Nothing of the previous attempt runs any more."""
        job, number = before.job, before.previous + 1
        nodes = connected.all_nodes()
        # With a scheduler, the login node stands for every node.
        by_rank = nodes if job.cluster.scheduler is None else dict.fromkeys(range(job.cluster.nodes), nodes[0])
        step = saved = None
        if before.previous:
            saved = self._checkpoints_after_cleanup(run, before, nodes, by_rank)
            may_begin = before.policy.at_start_without or before.source is not None
            step = choose_checkpoint(job, run, saved, replace(before.policy, at_start_without=may_begin))
        if checked is None or checked.job != job:  # the stored job is the one that is launched
            checked = CheckedJob(job)
        report = self._preflight(run, checked, connected, before.accepted)
        if saved:
            self._set_aside(run, job, nodes, saved, step, number)
        checkpoint = saved.path(step) if saved and step is not None else None
        if checkpoint is None and before.source is not None and before.policy.step != 0:
            step, checkpoint = before.source["step"], before.source["folder"]
        placement = launch.make_placement(job, run, number, report.facts, report.port, checkpoint)
        rendered = prepared(job, render(checked, placement), placement, by_rank, report.facts)
        return launch.Attempt(
            run=run,
            number=number,
            job=job,
            placement=placement,
            rendered=rendered if job.cluster.scheduler is None else with_allocation(rendered),
            records=launch.make_records(job, placement, report.facts),
            grace_s=self._grace_s,
            secrets=secrets,
            checkpoint_step=step,
            versions={rank: report.facts[rank if rank in report.facts else 0].versions() for rank in by_rank},
            hostnames={rank: facts.hostname for rank, facts in report.facts.items()},
        )

    def _checkpoints_after_cleanup(
        self, run: str, before: _Before, nodes: Mapping[int, Node], by_rank: Mapping[int, Node]
    ) -> Checkpoints:
        """End what is left of the previous attempt. Return the checkpoints on the nodes."""
        host_of = before.job.cluster.connected_hosts
        # The reaper asks the nodes that spares have replaced.
        kept = {rank: node for rank, node in by_rank.items() if before.hosts[rank] == host_of[rank]}
        clean_up(self._store, run, before.previous, before.job, kept, grace_s=self._grace_s, clock=self._clock)
        return find_checkpoints(before.job, run, nodes)

    def _preflight(
        self, run: str, checked: CheckedJob, connected: ConnectedNodes, accepted: Collection[str] | None
    ) -> PreflightReport:
        """Run the preflight. Raises ProblemsError for its errors, and for warnings that nobody accepted."""
        with self._store.read() as connection:
            kept_out = cordons(connection)
        report = run_preflight(checked, connected, launch.candidate_ports(checked.job), self._accepted, kept_out)
        if report.problems:
            raise ProblemsError(report.problems)
        if not_accepted := report.not_accepted(accepted):
            raise ProblemsError([Problem(code=NOT_ACCEPTED), *not_accepted])
        if report.warnings:
            passed = [problem_to_json(warning) for warning in report.warnings]
            self._record(run, EventKind.WARNINGS_PASSED, None, {"warnings": passed})
        return report

    def _set_aside(
        self, run: str, job: Job, nodes: Mapping[int, Node], saved: Checkpoints, step: int | None, number: int
    ) -> None:
        """Rename the checkpoints after `step`: a trainer would count them, and could resume from the newest one."""
        later_steps = [later_step for later_step in saved.steps if later_step > (step or 0)]
        if later_steps:
            checkpoints.set_aside(job, nodes, saved.folder, later_steps, f"before-attempt-{number}-")
            self._record(run, EventKind.CHECKPOINTS_SET_ASIDE, None, {"steps": later_steps})

    def _record_failure(self, run: str, error: BaseException) -> None:
        """Put an automatic restart that started nothing back into the queue; let any other run fail."""
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
                detail["warnings"] = [problem_to_json(warning) for warning in error.problems[1:]]
            run_store.append(connection, run, EventKind.FAILING, time=now, rank=rank, detail=detail)

        self._store.write(write)

    def _record(
        self, run: str, kind: EventKind, rank: int | None = None, detail: Mapping[str, object] | None = None
    ) -> bool:
        return self._store.write(
            lambda connection: run_store.append(connection, run, kind, time=self._clock(), rank=rank, detail=detail)
        )
