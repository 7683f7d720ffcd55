"""Start of an attempt through Slurm: one folder for each node rank, one batch script, one submission."""

import posixpath
from collections.abc import Callable, Mapping, Sequence

from backend.cluster.inventory.software import python_command
from backend.cluster.node import Node
from backend.cluster.node_group import on_all
from backend.cluster.node_programs import SUPERVISOR
from backend.cluster.slurm import submit
from backend.engines import Placement
from backend.engines.slurm import SCRIPT, batch_script
from backend.estimate import estimate
from backend.job.cluster import Environment
from backend.job.job import Job
from backend.job.problems import ProblemsError
from backend.runs.launch import launch
from backend.runs.launch.launch import Attempt
from backend.runs.rank_secrets import FILE as SECRETS_FILE
from backend.runs.states import EventKind

UPLOADS_AT_ONCE_S = 600.0
"""All uploads go through the login node, a few at a time."""


def job_name(run: str, attempt: int) -> str:
    """Return the name of the attempt's Slurm job. No other job has it, so the job is found without its id."""
    return f"megaboard-{run}-{attempt}"


def attempt_folder(node_folder: str) -> str:
    """Return the folder that has the folders of all nodes."""
    return posixpath.dirname(node_folder)


def batch_of(job: Job, placement: Placement, ports: Sequence[int]) -> str:
    """Return the batch script of an attempt."""
    node = placement.nodes[0]
    folder = attempt_folder(node.folder)
    environment = Environment(python=node.python, setup=node.setup)
    # Every node's folder has the same program. Node 0 always exists.
    command = python_command(environment, [f"{node.folder}/{SUPERVISOR}", "run", folder])
    return batch_script(job, job_name(placement.run_id, placement.attempt), folder, command, ports)


def submit_all(
    attempt: Attempt, node: Node, record: Callable[[EventKind, int | None, Mapping[str, object]], object]
) -> None:
    """Upload the folders of all nodes through the login node, then submit the job. Raises NodeError or GroupError."""
    on_all(dict.fromkeys(range(len(attempt.records)), node), lambda rank, login: launch.upload(attempt, rank, login),
           UPLOADS_AT_ONCE_S)  # fmt: skip
    folder = attempt_folder(attempt.records[0].folder)
    script = batch_of(attempt.job, attempt.placement, launch.candidate_ports(attempt.job))
    node.write(f"{folder}/{SCRIPT}", script.encode())
    for node_record in attempt.records:
        if attempt.secrets:
            node.write(f"{node_record.folder}/{SECRETS_FILE}", attempt.secrets.file())
    number = submit(node, script)
    record(EventKind.SUBMITTED, None, {"job": number, "partition": _partition(attempt.job)})


def hours_of(job: Job) -> float | None:
    """Return the estimated hours of the training; None if they cannot be estimated."""
    try:
        return estimate(job).hours
    except ProblemsError:
        return None


def _partition(job: Job) -> str:
    return (job.cluster.scheduler.partition if job.cluster.scheduler else None) or ""
