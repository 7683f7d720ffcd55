"""Pulls or loads the container image of a job on its nodes, with the nodes' own runtime.

The runtime keeps the layers that it has, so the next pull continues an interrupted one.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace

from backend.cluster.inventory.software import NodeFacts, needed_environment, outside, read_software
from backend.cluster.node import Node
from backend.cluster.node_group import ends_of_all
from backend.cluster.node_programs import CONTAINER, node_program
from backend.cluster.preflight.results import CheckResult
from backend.engines import NodeCommand, Rendered
from backend.job.cluster import Container, Environment
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.problems import Problem, ProblemsError
from backend.runs.launch import launch
from backend.runs.launch.preflight import ConnectedNodes
from backend.runs.redact import redact
from backend.runs.tasks.one_off_task import (
    NodeReader,
    all_read,
    log_excerpt,
    make_attempt,
    read_exit,
    read_file,
    run_task,
)

LEFT = "pull_left"
POLL_S = 1.0
STALL_S = 1800.0
"""The supervisor ends a pull after this time without output. A layer of 10 GB at 100 Mbit/s takes 15 minutes."""
FACTS_S = 60.0
WITH_PULL = ("docker", "podman")
IMAGE_PROBLEMS = frozenset({"container_image_missing", "container_image_differs"})
LAYER = re.compile(rb"^([0-9a-f]{12}): (Pulling fs layer|Pull complete|Already exists)", re.MULTILINE)

ReportLayers = Callable[[int, int], object]
"""Called with (layers that are there, all layers) over all nodes during the pull."""


def lacks_image(checks: Iterable[CheckResult]) -> bool:
    """Return whether a node lacks the image or has another one of its name."""
    return any(check.problem is not None and check.problem.code in IMAGE_PROBLEMS for check in checks)


def pull(
    job: Job, connected: ConnectedNodes, run: str, progress: ReportLayers, archive: str | None = None
) -> tuple[Problem, ...]:
    """Pull the image on all nodes, or load it from the file `archive` on each node; return warnings of the clean-up.

    Raises ProblemsError, which names the nodes that failed. The other nodes keep the image.
    """
    nodes = connected.all_nodes()
    containers = {rank: _container(job, rank, node) for rank, node in nodes.items()}
    job = without_containers(job)
    facts = all_read(ends_of_all(nodes, lambda rank, node: _facts(job, rank, node), FACTS_S))
    placement = launch.make_placement(job, run, 1, facts, job.cluster.port_range[0])
    commands = tuple(
        NodeCommand(
            rank=node.rank,
            argv=("/usr/bin/env", "python3", f"{node.folder}/{CONTAINER}", "container-pull",
                  json.dumps(asdict(containers[node.rank])), archive or ""),
            environment={"PYTHONUNBUFFERED": "1"},
        )
        for node in placement.nodes
    )  # fmt: skip
    program = node_program(CONTAINER).decode() + "\n\ncontainer_main()\n"
    attempt = make_attempt(job, run, placement, facts, Rendered(files={CONTAINER: program}, commands=commands), STALL_S)
    _, clean_up_problems = run_task(attempt, nodes, LEFT, lambda: _wait(attempt, nodes, containers, progress))
    return clean_up_problems


def without_containers(job: Job) -> Job:
    """Return the job with environments outside of containers, in which our own programs run."""

    def strip(environments: Mapping[str, Environment]) -> dict[str, Environment]:
        return {name: outside(environment) for name, environment in environments.items()}

    hosts = tuple(replace(host, environments=strip(host.environments)) for host in job.cluster.hosts)
    return with_values(job, {"cluster.environments": strip(job.cluster.environments), "cluster.hosts": hosts})


def _container(job: Job, rank: int, node: Node) -> Container:
    container = needed_environment(job, rank, node).container
    if container is None or container.runtime not in WITH_PULL:
        raise ProblemsError([Problem(code="nothing_to_pull", field="cluster.environments")])
    return container


def _facts(job: Job, rank: int, node: Node) -> NodeFacts:
    return read_software(node, needed_environment(job, rank, node))


def _wait(
    attempt: launch.Attempt, nodes: Mapping[int, Node], containers: Mapping[int, Container], progress: ReportLayers
) -> None:
    """Wait until every node has ended. Raises ProblemsError for all nodes that failed."""
    reader = NodeReader(nodes)
    while True:
        states = reader.read(lambda rank, node: (read_exit(attempt, rank, node), _layers(attempt, rank, node)))
        known = {rank: state for rank, state in states.items() if state}
        layers = [counts for _, counts in known.values()]
        progress(sum(done for done, _ in layers), sum(total for _, total in layers))
        ended = {rank: end for rank, (end, _) in known.items() if end}
        if len(ended) == len(nodes):
            break
        time.sleep(POLL_S)
    failed = [rank for rank, end in ended.items() if end.get("code") != 0]
    if failed:
        raise ProblemsError([_failure(attempt, rank, nodes[rank], containers[rank].image) for rank in failed])


def _layers(attempt: launch.Attempt, rank: int, node: Node) -> tuple[int, int]:
    """Return how many layers of the image a node has, and how many there are, from the output of the runtime."""
    log = read_file(node, f"{attempt.records[rank].folder}/out.log") or b""
    steps = LAYER.findall(log)
    return len({layer for layer, step in steps if step != b"Pulling fs layer"}), len({layer for layer, _ in steps})


def _failure(attempt: launch.Attempt, rank: int, node: Node, image: str) -> Problem:
    lines = log_excerpt(node, f"{attempt.records[rank].folder}/out.log")
    values = {"node": node.name, "image": image, "lines": redact(lines)}
    return Problem(code="pull_failed", field="cluster.environments", node=node.name, values=values)
