"""Where an attempt can begin: the checkpoints of a run as its nodes see them, and which of them is taken."""

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
from backend.runs.records import Source
from backend.runs.states import EventKind
from backend.runs.store import queue_order, run_store


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoints:
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
        return checkpoint_folder(self.folder, step)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumePolicy:
    """Where the next attempt is to begin."""

    step: int | None = None
    """Of a checkpoint; 0: at the start, whatever there is; None: from the newest complete one."""
    at_start_without: bool = False
    """Begin at the start when there is no complete checkpoint; otherwise, or when a node does not see what others do,
    that is refused."""


def checkpoint_folder(results: str, step: int) -> str:
    """Where trainers put the checkpoint of a step."""
    return posixpath.join(results, f"checkpoint-{step}")


def resume_policy_of(connection: sqlite3.Connection, run: str) -> ResumePolicy:
    """Where the next attempt is to begin: as a user asked, or as far on as possible after a restart."""
    kinds = (EventKind.RESUMED, EventKind.RESTARTING)
    newest = next((event for event in reversed(run_store.events(connection, run)) if event.kind in kinds), None)
    if newest is not None and newest.kind is EventKind.RESUMED:
        return ResumePolicy(step=newest.detail.get("checkpoint"))
    return ResumePolicy(at_start_without=True)


def find_checkpoints(job: Job, run: str, nodes: Mapping[int, Node]) -> Checkpoints:
    """Look on all nodes of a run. ProblemsError when one of them cannot be asked."""
    try:
        seen = checkpoints.look(job, nodes, results_folder(job, run))
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
    return Checkpoints(folder=folder, steps=tuple(files), flaws=flaws, newest=newest, files=files, hidden=hidden)


def choose_checkpoint(job: Job, run: str, found: Checkpoints, wish: ResumePolicy) -> int | None:
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
        node = queue_order.addresses_of(job)[flaw.rank]
        values |= {"step": step, "file": flaw.file, "node": node}
        code = "checkpoint_damaged" if flaw.damaged else "checkpoint_incomplete"
        raise ProblemsError([Problem(code=code, node=node, values=values)])
    return step


def find_source(before: Job, run: str, step: int | None, connections: Connections, job: Job | None = None) -> Source:
    """The checkpoint of a run, launched with `before`, that another can begin with: the newest, or that of a step.

    ProblemsError when there is none, when the plan of the other (`job`) cannot load it, or when one of its nodes does
    not see it.
    """
    found = find_checkpoints(before, run, connect_nodes(before, connections).all_nodes())
    chosen = choose_checkpoint(before, run, found, ResumePolicy(step=step))
    values: dict[str, object] = {"run": run, "folder": found.folder, "step": chosen}
    if chosen is None:
        raise ProblemsError([Problem(code="no_checkpoint", values=values)])
    files = found.files[chosen]
    source = Source(run=run, step=chosen, folder=found.path(chosen), bound=bound_to(before, files))
    if job is not None and (problems := check_source(before, job, source.bound)):
        raise ProblemsError(problems)
    if job is not None and job.cluster.hosts != before.cluster.hosts:
        nodes = connect_nodes(job, connections).all_nodes()
        _refuse_unless_seen(job, nodes, results_folder(before, run), chosen, files, values)
    return source


def _refuse_unless_seen(
    job: Job,
    nodes: Mapping[int, Node],
    folder: str,
    step: int,
    files: frozenset[str],
    values: Mapping[str, object],
) -> None:
    """Other nodes than those that wrote it must see all of it."""
    try:
        seen = checkpoints.look(job, nodes, folder)
    except GroupError as error:
        raise ProblemsError(error.problems) from error
    for rank, one in seen.items():
        saved = one.steps.get(step)
        if lacking := sorted(files - (saved.files if saved else frozenset())):
            node = queue_order.addresses_of(job)[rank]
            told = {**values, "file": lacking[0], "node": node}
            raise ProblemsError([Problem(code="checkpoint_incomplete", node=node, values=told)])
