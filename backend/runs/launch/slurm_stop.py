"""Stop of an attempt that Slurm runs. The proof is Slurm's: a job that has ended has no process on any node."""

import json
import posixpath
from collections.abc import Sequence

from backend.cluster.node import Node, NodeError
from backend.cluster.slurm import END_S, end_job
from backend.job.job import Job
from backend.runs.collect.node_records import Stopped
from backend.runs.launch.launch import stop_supervisor
from backend.runs.launch.slurm_launch import job_name
from backend.runs.rank_secrets import FILE as SECRETS_FILE
from backend.runs.records import NodeRecord

SLURM_STOP_S = 2 * END_S
REMOVE_S = 30.0


def stop_job(run: str, attempt: int, records: Sequence[NodeRecord], node: Node, grace_s: float) -> Stopped:
    """End the Slurm job of an attempt, and prove that it is over. `node` is the login node. Raises NodeError.

    The supervisors end their ranks first and write their records. Slurm ends what is left.
    """
    name = job_name(run, attempt)

    def ask_to_end() -> None:
        for record in records:
            if not node.exists(f"{record.folder}/exit"):
                node.write(f"{record.folder}/control/kill", json.dumps({"grace_s": grace_s}).encode())

    def has_ended() -> bool:
        return all(node.exists(f"{record.folder}/exit") for record in records)

    end_job(node, name, ask_to_end, has_ended, grace_s)
    remove_secrets(records, node)
    has_started = any(node.exists(f"{record.folder}/pid") for record in records)
    return {"left": []} if has_started else {"left": [], "started": False}


def stop_node(
    job: Job, run: str, attempt: int, records: Sequence[NodeRecord], record: NodeRecord, node: Node, grace_s: float
) -> Stopped:
    """Stop one node of an attempt, or the whole Slurm job of an attempt. Raises NodeError."""
    if job.cluster.scheduler is None:
        return stop_supervisor(record, node, grace_s)
    return stop_job(run, attempt, records, node, grace_s)


def remove_secrets(records: Sequence[NodeRecord], node: Node) -> None:
    """Remove the secrets of nodes that never started. A started node removed its own."""
    paths = [posixpath.join(record.folder, SECRETS_FILE) for record in records]
    result = node.run(["rm", "-f", "--", *paths], timeout_s=REMOVE_S)
    if result.code:
        raise NodeError("node_io", node.name, path=paths[0], detail=result.err)
