"""Preflight of a launch: connect to every node, read it, and run the checks of cluster/preflight/registry.py."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from backend.cluster.inventory.hardware import Hardware, read_all_hardware
from backend.cluster.inventory.software import NodeFacts, read_all_software
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import try_all
from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.cluster.preflight.master_port import choose_port
from backend.cluster.preflight.registry import run_checks
from backend.cluster.preflight.results import CheckResult
from backend.cluster.preflight.slurm import run_slurm_checks
from backend.cluster.ssh.host_keys import HostKey, UnknownHostKey
from backend.engines import CheckedJob, Rendered, render
from backend.job.job import Job
from backend.job.problems import Problem, ProblemsError, errors
from backend.runs.connections import Connections
from backend.runs.launch.launch import make_placement
from backend.runs.launch.slurm_launch import batch_of, hours_of

REHEARSAL = "preflight"
"""Run id of the configuration that the engine checks and that is never started."""
CONNECT_S = 60.0
"""Time limit for all nodes together, three tries each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreflightReport:
    """Result of a preflight. A launch is possible when `problems` is empty."""

    checks: tuple[CheckResult, ...] = ()
    facts: Mapping[int, NodeFacts] = field(default_factory=dict)
    """By node rank, for the nodes that could be read."""
    surveys: Mapping[int, Hardware] = field(default_factory=dict)
    """Hardware by node rank, also of nodes whose Python of the engine does not run."""
    unknown_host_keys: tuple[HostKey, ...] = ()
    """The user has to confirm them (Controller.accept_host_keys)."""
    problems: tuple[Problem, ...] = ()
    """Errors that prevent a launch."""
    port: int = 0
    """The master port that was checked."""

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Return the warnings that the user may accept before a launch."""
        problems = [check.problem for check in self.checks if check.status == "warning"]
        return tuple(problem for problem in problems if problem is not None)

    def not_accepted(self, accepted: Collection[str] | None) -> tuple[Problem, ...]:
        """Return the warnings whose keys are not accepted; `accepted` None: all are accepted."""
        return tuple(
            warning for warning in self.warnings if accepted is not None and warning_key(warning) not in accepted
        )


def warning_key(problem: Problem) -> str:
    """Return the key of an accepted warning: its code and its node, without its values, which change."""
    return f"{problem.code} {problem.node}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectedNodes:
    """The nodes of a job by rank, each connected or with its error."""

    nodes: Mapping[int, Node]
    failures: Mapping[int, NodeError]

    @property
    def unknown_host_keys(self) -> tuple[HostKey, ...]:
        """Return the keys of hosts that are not known yet."""
        return tuple(error.host_key for error in self.failures.values() if isinstance(error, UnknownHostKey))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the errors of the nodes that are not connected."""
        return tuple(error.problem for error in self.failures.values())

    def all_nodes(self) -> Mapping[int, Node]:
        """Return all nodes. ProblemsError when one is not connected."""
        if self.failures:
            raise ProblemsError(self.problems)
        return self.nodes


def connect_nodes(job: Job, connections: Connections) -> ConnectedNodes:
    """Connect to every host of the job in parallel, and test each connection with one round trip.

    With a scheduler the login node is the only one, with rank 0.
    """
    hosts = job.cluster.hosts if job.cluster.scheduler is None else job.cluster.connected_hosts[:1]

    def connect(rank: int, _: object) -> Node:
        node = connections.get(hosts[rank])
        node.exists("/")
        return node

    nodes, failures = try_all(dict(enumerate(hosts)), connect, CONNECT_S)
    for failure in failures.values() if job.cluster.scheduler else ():
        failure.field = failure.field or f"cluster.scheduler.login.{failure.key}"
    return ConnectedNodes(nodes=nodes, failures=failures)


def run_preflight(
    checked: CheckedJob, connected: ConnectedNodes, ports: Sequence[int], accepted: AcceptedConfigurations
) -> PreflightReport:
    """Read the connected nodes and check them.

    `ports` are the candidates for the master port, `accepted` the configurations that the engine has accepted before.
    """
    job = checked.job
    if job.cluster.scheduler is not None:
        return _run_slurm_preflight(checked, connected, ports, accepted)
    read = read_all_software(job, connected.nodes)
    facts = {rank: fact for rank, fact in read.items() if isinstance(fact, NodeFacts)}
    port = _free_port(job, connected.nodes[0], ports) if 0 in facts else ports[0]
    surveys = read_all_hardware(job, connected.nodes)

    def render_launch() -> Rendered:
        return render(checked, make_placement(job, REHEARSAL, 1, facts, port))

    checks = run_checks(job, {**connected.nodes, **connected.failures}, read, surveys, port, render_launch, accepted)
    problems = [check.problem for check in checks if check.problem is not None]
    return PreflightReport(
        checks=tuple(checks),
        facts=facts,
        surveys={rank: hardware for rank, hardware in surveys.items() if isinstance(hardware, Hardware)},
        unknown_host_keys=connected.unknown_host_keys,
        problems=tuple(errors(problems)),
        port=port,
    )


def _run_slurm_preflight(
    checked: CheckedJob, connected: ConnectedNodes, ports: Sequence[int], accepted: AcceptedConfigurations
) -> PreflightReport:
    """Read the login node, which sees the files of the nodes, and let Slurm check the request."""
    job = checked.job
    read = read_all_software(job, connected.nodes)
    facts = {rank: fact for rank, fact in read.items() if isinstance(fact, NodeFacts)}
    surveys = read_all_hardware(job, connected.nodes)

    def render_launch() -> Rendered:
        return render(checked, make_placement(job, REHEARSAL, 1, facts, ports[0]))

    checks = run_slurm_checks(
        job,
        {**connected.nodes, **connected.failures},
        read,
        surveys,
        lambda: batch_of(job, make_placement(job, REHEARSAL, 1, facts, ports[0]), ports),
        render_launch,
        hours_of(job),
        accepted,
    )
    problems = [check.problem for check in checks if check.problem is not None]
    return PreflightReport(
        checks=tuple(checks),
        facts=facts,
        surveys={rank: hardware for rank, hardware in surveys.items() if isinstance(hardware, Hardware)},
        unknown_host_keys=connected.unknown_host_keys,
        problems=tuple(errors(problems)),
        port=ports[0],
    )


def _free_port(job: Job, master: Node, ports: Sequence[int]) -> int:
    """Return a port that is free on node 0. Without one, return the first port: its check fails later."""
    try:
        return choose_port(job, master, ports)
    except NodeError:
        return ports[0]
