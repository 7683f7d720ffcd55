"""The checks before a launch, in order. They change nothing on a node and leave nothing behind.

How to add a check:

1. Write `check_<name>` in a file of this folder. A check of one node takes NodeReadings, a check across nodes takes
   GangReadings (readings.py). It returns its results, or an empty list if the job does not need the check.
2. Add one line to CHECKS: the function and the names of its results.
3. Add the names to CheckName (results.py), and `check.<name>` and the texts of its problems to both catalogues.

A check of one node reads what the node has answered already. Where a node does not answer a question, the first check
that reads the answer fails, and the other checks that read it return nothing. A check that has a question of its own
runs across nodes: it asks all nodes at once (ends_of_all), as check_prints does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backend.cluster.inventory.hardware import Hardware
from backend.cluster.inventory.software import NodeFacts
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import ends_of_all
from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.cluster.preflight.container import check_image
from backend.cluster.preflight.deepspeed_extensions import check_parts
from backend.cluster.preflight.engine_args import check_engine_args
from backend.cluster.preflight.equality import check_machines, check_prints, check_shared
from backend.cluster.preflight.files import ASK_S, ask_paths, check_dataset, check_model, check_writable
from backend.cluster.preflight.gpus import check_cuda, check_gpu_memory, check_gpus
from backend.cluster.preflight.lock import ask_lock, check_lock
from backend.cluster.preflight.machine import check_clocks, check_limits, check_logout, check_space
from backend.cluster.preflight.master_port import check_port
from backend.cluster.preflight.network import check_interfaces, check_rdma
from backend.cluster.preflight.packages import check_engine, check_metrics, check_versions
from backend.cluster.preflight.readings import GangReadings, NodeReadings
from backend.cluster.preflight.results import CheckName, CheckResult, Checks
from backend.cluster.preflight.trackers import check_tracker
from backend.engines import Rendered
from backend.job.job import Job


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """A check of one node."""

    run: Callable[[NodeReadings], list[CheckResult]]
    names: tuple[CheckName, ...]
    """Names of its results."""
    is_for_every_job: bool = False
    """Whether it reports `skipped` for a node that cannot be reached or whose Python does not run."""
    is_for_login_node: bool = False
    """Whether a launch through Slurm runs it on the login node, which sees the files of the nodes."""


@dataclass(frozen=True, slots=True)
class GangCheck:
    """A check across nodes. It runs after the checks of single nodes."""

    run: Callable[[GangReadings], list[CheckResult]]
    names: tuple[CheckName, ...]
    """Names of its results."""


CHECKS: tuple[NodeCheck | GangCheck, ...] = (
    NodeCheck(check_gpus, ("gpus", "gpus_free")),
    NodeCheck(check_gpu_memory, ("gpu_memory",)),
    NodeCheck(check_cuda, ("cuda",)),
    NodeCheck(check_limits, ("shm", "limits")),
    NodeCheck(check_logout, ("logout",)),
    NodeCheck(check_engine, ("engine",), is_for_every_job=True, is_for_login_node=True),
    NodeCheck(check_metrics, ("metrics",)),
    NodeCheck(check_model, ("model",), is_for_every_job=True, is_for_login_node=True),
    NodeCheck(check_dataset, ("dataset",), is_for_every_job=True, is_for_login_node=True),
    NodeCheck(check_tracker, ("tracker",), is_for_login_node=True),
    NodeCheck(check_writable, ("run_root", "output_dir"), is_for_every_job=True, is_for_login_node=True),
    NodeCheck(check_parts, ("deepspeed",), is_for_login_node=True),
    NodeCheck(check_space, ("space",), is_for_login_node=True),
    NodeCheck(check_lock, ("lock",), is_for_every_job=True),
    GangCheck(check_image, ("container",)),
    GangCheck(check_versions, ("versions",)),
    GangCheck(check_machines, ("machines",)),
    GangCheck(check_prints, ("model_equal", "data_equal")),
    GangCheck(check_shared, ("output_shared",)),
    GangCheck(check_clocks, ("clock",)),
    GangCheck(check_interfaces, ("interface",)),
    GangCheck(check_rdma, ("rdma",)),
    GangCheck(check_port, ("master_port",)),
    GangCheck(check_engine_args, ("configuration",)),
)
"""Before these, each node has a `login` and a `python` result."""
OF_NODES = tuple(check for check in CHECKS if isinstance(check, NodeCheck))
OF_LOGIN_NODE = tuple(check for check in OF_NODES if check.is_for_login_node)
"""The part of CHECKS that slurm.py runs, before its own checks of the request."""


def run_checks(
    job: Job,
    nodes: Mapping[int, Node | NodeError],
    facts: Mapping[int, NodeFacts | NodeError],
    hardware: Mapping[int, Hardware | NodeError],
    port: int,
    render: Callable[[], Rendered] | None = None,
    accepted: AcceptedConfigurations | None = None,
    secret_names: frozenset[str] = frozenset(),
) -> list[CheckResult]:
    """Return the results of all checks: node by node, then across nodes.

    A NodeError replaces a node that could not be reached, and an answer that a node did not give. The job has passed
    check_launch. `accepted`: the configurations that the engine has accepted before. `secret_names`: names of the
    secrets that the ranks will get.
    """
    checks = {rank: Checks(rank, host.name) for rank, host in enumerate(job.cluster.hosts)}
    connected = {rank: node for rank, node in nodes.items() if not isinstance(node, NodeError)}
    known = {rank: fact for rank, fact in facts.items() if isinstance(fact, NodeFacts) and rank in connected}
    ready = {rank: connected[rank] for rank in known}
    readings = _read_nodes(job, checks, ready, known, hardware, secret_names)
    results = []
    for rank, builder in checks.items():
        if rank in readings:
            results += run_node_checks(readings[rank], OF_NODES)
        else:
            results += _failed_start(builder, nodes[rank], facts.get(rank))
    gang = GangReadings(
        job=job,
        checks=checks,
        nodes=ready,
        facts=known,
        hardware={rank: answer for rank in ready if isinstance(answer := hardware[rank], Hardware)},
        port=port,
        render=render,
        results=results,
        accepted=accepted or AcceptedConfigurations(),
    )
    for check in CHECKS:
        if isinstance(check, GangCheck):
            results += check.run(gang)
    return results


def _read_nodes(
    job: Job,
    checks: Mapping[int, Checks],
    nodes: Mapping[int, Node],
    facts: Mapping[int, NodeFacts],
    hardware: Mapping[int, Hardware | NodeError],
    secret_names: frozenset[str],
) -> dict[int, NodeReadings]:
    """Ask the nodes whose Python runs for their paths and locks; return rank -> all answers."""
    paths = ends_of_all(nodes, lambda rank, node: ask_paths(job, rank, node), ASK_S + 10)
    locks = ends_of_all(nodes, lambda rank, node: ask_lock(job, rank, node, facts[rank].home), ASK_S + 10)
    return {
        rank: NodeReadings(
            job=job,
            checks=checks[rank],
            facts=facts[rank],
            hardware_answer=hardware[rank],
            paths_answer=paths[rank],
            lock_answer=locks[rank],
            secret_names=secret_names,
        )
        for rank in nodes
    }


def _failed_start(checks: Checks, node: Node | NodeError, facts: NodeFacts | NodeError | None) -> list[CheckResult]:
    """Return the results of a node that cannot be reached or whose Python does not run."""
    if isinstance(node, NodeError):
        start = [checks.raised("login", node), checks.skipped("python")]
    else:
        start = [
            checks.ok("login"),
            checks.raised("python", facts) if isinstance(facts, NodeError) else checks.skipped("python"),
        ]
    every = (check for check in OF_NODES if check.is_for_every_job)
    return [*start, *(checks.skipped(name) for check in every for name in check.names)]


def run_node_checks(readings: NodeReadings, node_checks: Sequence[NodeCheck]) -> list[CheckResult]:
    """Return the results of these checks of one node whose Python runs."""
    checks = readings.checks
    results = [checks.ok("login"), checks.ok("python", version=readings.facts.python)]
    reported: list[NodeError] = []
    for check in node_checks:
        try:
            results += check.run(readings)
        except NodeError as error:
            if error not in reported:
                results.append(checks.raised(check.names[0], error))
            reported.append(error)
    return results
