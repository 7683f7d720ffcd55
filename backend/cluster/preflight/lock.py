"""Check that no other run uses a node."""

import posixpath
import re

from backend.cluster.inventory.software import expand, needed_environment, outside, python_command
from backend.cluster.node import Node, ask
from backend.cluster.node_programs import SUPERVISOR, node_program
from backend.cluster.preflight.readings import NodeReadings
from backend.cluster.preflight.results import CheckResult
from backend.cluster.program_answers.checks import Lock
from backend.cluster.typed_json import answer_of
from backend.job.cluster import Host
from backend.job.job import Job

LOCKS = "locks"
"""Folder of the lock files in the run root."""
ASK_S = 30.0


def lock_path(run_root: str, host: Host) -> str:
    """Return the path of a node's lock file; `run_root` is absolute. Nodes that share an address differ by port."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", host.dialled_address)
    return posixpath.join(run_root, LOCKS, name if host.port == 22 else f"{name}_{host.port}")


def ask_lock(job: Job, rank: int, node: Node, home: str) -> Lock:
    """Return the run that holds a node's lock file."""
    path = lock_path(expand(job.cluster.run_root, home), job.cluster.hosts[rank])
    argv = python_command(outside(needed_environment(job, rank, node)), ["-", "holder", path])
    return answer_of(node.name, Lock, ask(node, argv, timeout_s=ASK_S, stdin=node_program(SUPERVISOR)))


def check_lock(node: NodeReadings) -> list[CheckResult]:
    """Check that no other run uses the node."""
    holder = node.lock.get("holder")
    if holder:
        return [node.checks.wrong("lock", "node_locked", node.checks.address_field, run=holder["run"])]
    return [node.checks.ok("lock")]
