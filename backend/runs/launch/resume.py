"""Choice of the checkpoint that an attempt resumes from."""

import posixpath
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from backend.cluster.inventory import checkpoints
from backend.cluster.node import Node
from backend.cluster.node_group import GroupError
from backend.engines import results_folder
from backend.engines.checkpoints import Flaw, all_steps, first_flaw, newest_complete
from backend.engines.resharding import bound_to, check_source
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError
from backend.runs.connections import Connections
from backend.runs.launch.preflight import connect_nodes
from backend.runs.records import StartCheckpoint
from backend.runs.states import EventKind
from backend.runs.store import run_store


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoints:
    """The checkpoints of a run on its nodes."""

    folder: str
    """Absolute folder of the run's results."""
    steps: tuple[int, ...]
    flaws: Mapping[int, Flaw]
    """Step -> why its checkpoint is incomplete. Complete checkpoints have no entry."""
    newest: int | None
    """The last step with a complete checkpoint."""
    files: Mapping[int, frozenset[str]]
    """Step -> the files of its checkpoint that at least one node has."""
    hidden: bool
    """A node has no checkpoint at all while others have some: its disk may not be mounted yet."""

    def path(self, step: int) -> str:
        """Return the folder of the checkpoint of a step."""
        return checkpoint_folder(self.folder, step)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumePolicy:
    """Which checkpoint the next attempt resumes from."""

    step: int | None = None
    """Step of the checkpoint; 0: the beginning of the training; None: the newest complete checkpoint."""
    at_start_without: bool = False
    """Without a complete checkpoint, start at the beginning of the training instead of raising a problem. It has no
    effect when a node lacks checkpoints that others have."""


def checkpoint_folder(results: str, step: int) -> str:
    """Return the folder in which trainers save the checkpoint of a step."""
    return posixpath.join(results, f"checkpoint-{step}")


def resume_policy_of(connection: sqlite3.Connection, run: str) -> ResumePolicy:
    """Return the policy of the next attempt: that of the user's resume, or the newest checkpoint after a restart."""
    kinds = (EventKind.RESUMED, EventKind.RESTARTING)
    newest = next((event for event in reversed(run_store.events(connection, run)) if event.kind in kinds), None)
    if newest is not None and newest.kind is EventKind.RESUMED:
        return ResumePolicy(step=newest.detail.get("checkpoint"))
    return ResumePolicy(at_start_without=True)


def find_checkpoints(job: Job, run: str, nodes: Mapping[int, Node]) -> Checkpoints:
    """List the checkpoints on all nodes of a run. Raises ProblemsError when a node cannot be read."""
    try:
        listed = checkpoints.read_checkpoints(job, nodes, results_folder(job, run))
    except GroupError as error:
        raise ProblemsError(error.problems) from error
    steps = {rank: node_checkpoints.steps for rank, node_checkpoints in listed.items()}
    flaws = {step: flaw for step in all_steps(steps) if (flaw := first_flaw(job, step, steps)) is not None}
    files = {
        step: frozenset(file for saved in steps.values() if step in saved for file in saved[step].files)
        for step in all_steps(steps)
    }
    folder, newest = listed[0].folder, newest_complete(job, steps)
    hidden = any(steps.values()) and not all(steps.values())
    return Checkpoints(folder=folder, steps=tuple(files), flaws=flaws, newest=newest, files=files, hidden=hidden)


def choose_checkpoint(job: Job, run: str, saved: Checkpoints, policy: ResumePolicy) -> int | None:
    """Return the step to resume from; None: the beginning. Raises ProblemsError: no_checkpoint, checkpoint_*."""
    if policy.step == 0:
        return None
    if not job.can_resume:
        if policy.at_start_without:
            return None
        raise ProblemsError([Problem(code="reward_model_not_resumed", values={"run": run})])
    if policy.step is None and saved.newest is None and policy.at_start_without and not saved.hidden:
        return None
    if policy.step is None and saved.newest is not None:
        return saved.newest
    values: dict[str, object] = {"run": run, "folder": saved.folder, "step": policy.step}
    if policy.step is None and not saved.steps:
        raise ProblemsError([Problem(code="no_checkpoint", values=values)])
    step = saved.steps[-1] if policy.step is None else policy.step
    if step not in saved.steps:
        raise ProblemsError([Problem(code="checkpoint_missing", values={**values, "steps": list(saved.steps)})])
    if step in saved.flaws:
        flaw = saved.flaws[step]
        node = job.cluster.connected_hosts[flaw.rank].name
        values |= {"step": step, "file": flaw.file, "node": node}
        code = "checkpoint_damaged" if flaw.damaged else "checkpoint_incomplete"
        raise ProblemsError([Problem(code=code, node=node, values=values)])
    return step


def find_source(
    source_job: Job, run: str, step: int | None, connections: Connections, job: Job | None = None
) -> StartCheckpoint:
    """Return a checkpoint of a run (its job: `source_job`) that another run (`job`) can start from.

    Raises ProblemsError when there is no checkpoint, when the plan of `job` cannot load it, or when one of its nodes
    lacks it.
    """
    saved = find_checkpoints(source_job, run, connect_nodes(source_job, connections).all_nodes())
    chosen_step = choose_checkpoint(source_job, run, saved, ResumePolicy(step=step))
    values: dict[str, object] = {"run": run, "folder": saved.folder, "step": chosen_step}
    if chosen_step is None:
        raise ProblemsError([Problem(code="no_checkpoint", values=values)])
    files = saved.files[chosen_step]
    source = StartCheckpoint(
        run=run, step=chosen_step, folder=saved.path(chosen_step), bound=bound_to(source_job, files)
    )
    if job is not None and (problems := check_source(source_job, job, source.bound)):
        raise ProblemsError(problems)
    if job is not None and job.cluster.hosts != source_job.cluster.hosts:
        nodes = connect_nodes(job, connections).all_nodes()
        _refuse_missing_files(job, nodes, results_folder(source_job, run), chosen_step, files, values)
    return source


def _refuse_missing_files(
    job: Job,
    nodes: Mapping[int, Node],
    folder: str,
    step: int,
    files: frozenset[str],
    values: Mapping[str, object],
) -> None:
    """Raise ProblemsError unless the nodes have every file of the checkpoint."""
    try:
        listed = checkpoints.read_checkpoints(job, nodes, folder)
    except GroupError as error:
        raise ProblemsError(error.problems) from error
    for rank, node_checkpoints in listed.items():
        saved = node_checkpoints.steps.get(step)
        if missing := sorted(files - (saved.files if saved else frozenset())):
            node = job.cluster.connected_hosts[rank].name
            problem_values = {**values, "file": missing[0], "node": node}
            raise ProblemsError([Problem(code="checkpoint_incomplete", node=node, values=problem_values)])
