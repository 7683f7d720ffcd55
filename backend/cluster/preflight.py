"""The checks before a launch, on all nodes at once. They change nothing on a node and leave nothing behind."""

import posixpath
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from backend.cluster.checks import (
    CheckName,
    CheckResult,
    Checks,
    check_dataset,
    check_engine,
    check_gpu_memory,
    check_lock,
    check_model,
    check_versions,
    check_writable,
    dataset_names,
)
from backend.cluster.deepspeed_parts import EXTENSIONS, check_parts, needed_parts
from backend.cluster.group import try_all
from backend.cluster.node import Node, NodeError, ask
from backend.cluster.probe import NodeFacts, inspect, python_command
from backend.cluster.ssh_config import display_name
from backend.job.cluster import Environment, Host
from backend.job.job import Job
from backend.job.launch_rules import environment_of

ASK_S = 30.0
DIAL_S = 8.0
"""How long nodes try to reach the master's port; a listener is up after less than one."""
NEEDS_PYTHON: tuple[CheckName, ...] = ("engine", "model", "dataset", "run_root", "output_dir", "lock")
SUPERVISOR = Path(__file__).with_name("supervisor.py")

T = TypeVar("T")


def preflight(
    job: Job, nodes: Mapping[int, Node | NodeError], facts: Mapping[int, NodeFacts | NodeError], port: int
) -> list[CheckResult]:
    """Every check of every node, by node and in the order they depend on one another; then those between nodes.

    A node that could not be reached is given as its NodeError, as are facts that could not be read. The job has passed
    check_launch.
    """
    checks = {rank: Checks(rank, display_name(host)) for rank, host in enumerate(job.cluster.hosts)}
    connected = {rank: node for rank, node in nodes.items() if not isinstance(node, NodeError)}
    known = {rank: fact for rank, fact in facts.items() if isinstance(fact, NodeFacts) and rank in connected}
    ready = {rank: connected[rank] for rank in known}
    found = _both(try_all(ready, lambda rank, node: _ask_paths(job, rank, node), ASK_S + 10))
    locks = _both(try_all(ready, lambda rank, node: _ask_lock(job, rank, node, known[rank].home), ASK_S + 10))
    results = []
    for rank, of in checks.items():
        results += _check_node(job, of, nodes[rank], facts.get(rank), found.get(rank), locks.get(rank))
    if known:
        results += check_versions(checks, known)
    return results + _check_port(job, checks, ready, port)


def choose_port(job: Job, node: Node, ports: Sequence[int]) -> int:
    """The first of `ports` that is free on `node`, which is node 0. Raises NodeError(no_free_port)."""
    answer = inspect(node, _environment(job, 0), "free_port", {"ports": list(ports)}, ASK_S)
    if answer["port"] is None:
        first, last = job.cluster.port_range
        raise NodeError("no_free_port", node.name, field="cluster.port_range", first=first, last=last)
    return int(answer["port"])


def lock_path(run_root: str, host: Host) -> str:
    """The file that says which run uses a node; `run_root` is absolute. Nodes that share an address have ports."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", host.dialled_address)
    return posixpath.join(run_root, "locks", name if host.port == 22 else f"{name}_{host.port}")


def _check_node(
    job: Job,
    of: Checks,
    node: Node | NodeError,
    facts: NodeFacts | NodeError | None,
    found: Mapping[str, Any] | NodeError | None,
    lock: Mapping[str, Any] | NodeError | None,
) -> list[CheckResult]:
    if isinstance(node, NodeError):
        return [of.raised("login", node), of.skipped("python"), *(of.skipped(name) for name in NEEDS_PYTHON)]
    results = [of.ok("login")]
    if not isinstance(facts, NodeFacts):
        python = of.raised("python", facts) if facts else of.skipped("python")
        return [*results, python, *(of.skipped(name) for name in NEEDS_PYTHON)]
    results += [of.ok("python", version=facts.python), *check_gpu_memory(job, of, facts), check_engine(job, of, facts)]
    results += _or_error(
        of,
        "model",
        found,
        lambda it: [
            check_model(job, of, it),
            check_dataset(job, of, it),
            *check_writable(job, of, it),
            *check_parts(job, of, it),
        ],
    )
    return results + _or_error(of, "lock", lock, lambda it: [check_lock(of, it)])


def _or_error(
    of: Checks,
    name: CheckName,
    answer: Mapping[str, Any] | NodeError | None,
    judge: Callable[[Mapping[str, Any]], list[CheckResult]],
) -> list[CheckResult]:
    if answer is None:
        return [of.skipped(name)]
    return [of.raised(name, answer)] if isinstance(answer, NodeError) else judge(answer)


def _ask_paths(job: Job, rank: int, node: Node) -> Mapping[str, Any]:
    wanted = {
        "model": job.model.path,
        "dataset_dir": job.training.dataset_dir,
        "datasets": dataset_names(job),
        "writable": [job.cluster.run_root, job.training.output_dir],
        "parts": needed_parts(job),
        "extensions": job.environment.get(EXTENSIONS),
    }
    return inspect(node, _environment(job, rank), "paths", wanted, ASK_S)


def _ask_lock(job: Job, rank: int, node: Node, home: str) -> Mapping[str, Any]:
    root = job.cluster.run_root
    absolute = posixpath.join(home, root[2:]) if root.startswith("~/") else root
    path = lock_path(absolute, job.cluster.hosts[rank])
    argv = python_command(_environment(job, rank), ["-", "holder", path])
    return ask(node, argv, timeout_s=ASK_S, stdin=SUPERVISOR.read_bytes())


def _check_port(job: Job, checks: Mapping[int, Checks], nodes: Mapping[int, Node], port: int) -> list[CheckResult]:
    """Node 0 listens on the port as the job's master will, and every node, itself too, dials it."""
    if 0 not in nodes:
        return [of.skipped("master_port") for of in checks.values()]
    address = job.cluster.hosts[0].dialled_address

    def work(rank: int, node: Node) -> Mapping[str, Any]:
        dialled = {"address": address, "port": port, "seconds": DIAL_S, "word": secrets.token_hex(8)}
        if rank == 0:  # both in one command: its sshd may allow no second one
            wanted = {"port": port, "seconds": DIAL_S + 2, "callers": len(nodes), "dial": dialled}
            return inspect(node, _environment(job, 0), "listen", wanted, ASK_S)
        return inspect(node, _environment(job, rank), "dial", dialled, ASK_S)

    answers = _both(try_all(nodes, work, ASK_S + 10))
    listener = answers[0]
    if isinstance(listener, NodeError):
        wrong = checks[0].raised("master_port", listener)
    elif not listener["bound"]:
        wrong = checks[0].wrong("master_port", "port_taken", "cluster.port_range", port=port)
    else:
        answers[0] = listener["dialled"]
        return [_judge_dial(of, answers.get(rank), address, port) for rank, of in checks.items()]
    return [wrong, *(of.skipped("master_port") for rank, of in checks.items() if rank != 0)]


def _judge_dial(of: Checks, answer: Mapping[str, Any] | NodeError | None, address: str, port: int) -> CheckResult:
    if answer is None:
        return of.skipped("master_port")
    if isinstance(answer, NodeError):
        return of.raised("master_port", answer)
    if answer["reached"]:
        return of.ok("master_port", address=address, port=port)
    field = "cluster.hosts[0].fabric_address"
    detail = answer["detail"]
    return of.wrong("master_port", "master_not_reached", field, address=address, port=port, detail=detail)


def _environment(job: Job, rank: int) -> Environment:
    environment = environment_of(job, rank)
    if environment is None:
        raise NodeError("no_environment", display_name(job.cluster.hosts[rank]), name=job.traits.environment)
    return environment


def _both(ends: tuple[dict[int, T], dict[int, NodeError]]) -> dict[int, T | NodeError]:
    return {**ends[0], **ends[1]}
