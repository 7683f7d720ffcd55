"""Preflight of a launch: connect to every node, read it, and run the checks of cluster/preflight/registry.py."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from backend.cluster.inventory.hardware import Hardware, read_all_hardware
from backend.cluster.inventory.software import NodeFacts, read_all_software
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import try_all
from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.cluster.preflight.master_port import choose_port
from backend.cluster.preflight.registry import run_checks
from backend.cluster.preflight.results import CheckResult, Checks
from backend.cluster.preflight.slurm import run_slurm_checks
from backend.cluster.ssh.host_keys import HostKey, UnknownHostKey
from backend.engines import CheckedJob, Rendered, render
from backend.job.job import Job
from backend.job.launch_rules import own_field, with_spares
from backend.job.problems import Problem, ProblemsError, errors
from backend.runs.connections import Connections
from backend.runs.launch.launch import make_placement
from backend.runs.launch.slurm_launch import batch_of, hours_of
from backend.runs.rank_secrets import SECRETS
from backend.runs.store.node_replacement import Cordon

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
    hardware: Mapping[int, Hardware] = field(default_factory=dict)
    """By node rank, also of nodes whose Python of the engine does not run."""
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
    spares: Mapping[int, Node | NodeError] = field(default_factory=dict)
    """The spares, with the ranks after those of the nodes. No launch depends on them."""

    @property
    def unknown_host_keys(self) -> tuple[HostKey, ...]:
        """Return the keys of hosts that are not known yet."""
        errors = (*self.failures.values(), *self.spares.values())
        return tuple(error.host_key for error in errors if isinstance(error, UnknownHostKey))

    def with_spares(self) -> "ConnectedNodes":
        """Return the same with the spares among the nodes."""
        nodes = {rank: node for rank, node in self.spares.items() if not isinstance(node, NodeError)}
        failures = {rank: node for rank, node in self.spares.items() if isinstance(node, NodeError)}
        return ConnectedNodes(nodes={**self.nodes, **nodes}, failures={**self.failures, **failures})

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the errors of the nodes that are not connected."""
        return tuple(error.problem for error in self.failures.values())

    def all_nodes(self) -> Mapping[int, Node]:
        """Return all nodes. Raises ProblemsError when one is not connected."""
        if self.failures:
            raise ProblemsError(self.problems)
        return self.nodes


def connect_nodes(job: Job, connections: Connections) -> ConnectedNodes:
    """Connect to every host of the job in parallel, and test each connection with one round trip.

    With a scheduler the login node is the only one, with rank 0.
    """
    cluster = job.cluster
    hosts = (*cluster.hosts, *cluster.spares) if cluster.scheduler is None else cluster.connected_hosts[:1]

    def connect(rank: int, _: object) -> Node:
        node = connections.get(hosts[rank])
        node.exists("/")
        return node

    nodes, failures = try_all(dict(enumerate(hosts)), connect, CONNECT_S)
    for failure in failures.values() if cluster.scheduler else ():
        failure.field = failure.field or f"cluster.scheduler.login.{failure.key}"
    first_spare = len(hosts) if cluster.scheduler else len(cluster.hosts)
    ends: dict[int, Node | NodeError] = {**nodes, **failures}
    return ConnectedNodes(
        nodes={rank: node for rank, node in nodes.items() if rank < first_spare},
        failures={rank: failure for rank, failure in failures.items() if rank < first_spare},
        spares={rank: end for rank, end in sorted(ends.items()) if rank >= first_spare},
    )


def run_preflight(
    checked: CheckedJob,
    connected: ConnectedNodes,
    ports: Sequence[int],
    accepted: AcceptedConfigurations,
    cordons: Mapping[str, Cordon],
) -> PreflightReport:
    """Read the connected nodes and spares, and check them.

    `ports` are the candidates for the master port, `accepted` the configurations that the engine has accepted before,
    `cordons` the nodes that are kept out. What is wrong with a spare is a warning.
    """
    job, connected = checked.job, connected.with_spares()
    if job.cluster.scheduler is not None:
        return _run_slurm_preflight(checked, connected, ports, accepted)
    wide = with_spares(job)
    read = read_all_software(wide, connected.nodes)
    facts = {rank: fact for rank, fact in read.items() if isinstance(fact, NodeFacts)}
    port = _free_port(job, connected.nodes[0], ports) if 0 in facts else ports[0]
    hardware = read_all_hardware(wide, connected.nodes)

    def render_launch() -> Rendered:
        return render(checked, make_placement(job, REHEARSAL, 1, facts, port))

    nodes: dict[int, Node | NodeError] = {**connected.nodes, **connected.failures}
    secret_names = frozenset(SECRETS.names())
    checks = run_checks(wide, nodes, read, hardware, port, render_launch, accepted, secret_names)
    checks = check_cordons(wide, cordons) + checks
    checks = [of_spare(job, check) for check in checks]
    problems = [check.problem for check in checks if check.problem is not None]
    size = job.cluster.nodes
    return PreflightReport(
        checks=tuple(checks),
        facts=facts,
        hardware={rank: answer for rank, answer in hardware.items() if isinstance(answer, Hardware) and rank < size},
        unknown_host_keys=connected.unknown_host_keys,
        problems=tuple(errors(problems)),
        port=port,
    )


def check_cordons(job: Job, cordons: Mapping[str, Cordon]) -> list[CheckResult]:
    """Check that no node is kept out. The result is a part of the report only where some node is."""
    builders = [Checks(rank, host.name) for rank, host in enumerate(job.cluster.hosts)]
    kept_out = {checks.rank: cordons[checks.node] for checks in builders if checks.node in cordons}
    if not kept_out:
        return []
    return [
        checks.wrong("cordon", "node_cordoned", checks.address_field, **_reason(cordon))
        if (cordon := kept_out.get(checks.rank))
        else checks.ok("cordon")
        for checks in builders
    ]


def _reason(cordon: Cordon) -> dict[str, object]:
    """Return the values of a problem about a node that is kept out: why, and since which run."""
    values = {name: value for name, value in cordon.problem.values.items() if name != "node"}
    return {**values, "run": cordon.run, "reason_code": cordon.problem.code}


def of_spare(job: Job, check: CheckResult) -> CheckResult:
    """Return the result of a spare with a warning in place of a failure, at its own field. Others stay."""
    number = check.rank - job.cluster.nodes
    if number < 0 or check.problem is None:
        return check
    severity = "warning" if check.problem.severity == "error" else check.problem.severity
    problem = replace(check.problem, field=own_field(job, check.problem.field), severity=severity)
    return replace(check, problem=problem, status="warning" if check.status == "failure" else check.status)


def _run_slurm_preflight(
    checked: CheckedJob, connected: ConnectedNodes, ports: Sequence[int], accepted: AcceptedConfigurations
) -> PreflightReport:
    """Read the login node, which sees the files of the nodes, and let Slurm check the request."""
    job = checked.job
    read = read_all_software(job, connected.nodes)
    facts = {rank: fact for rank, fact in read.items() if isinstance(fact, NodeFacts)}
    hardware = read_all_hardware(job, connected.nodes)

    def render_launch() -> Rendered:
        return render(checked, make_placement(job, REHEARSAL, 1, facts, ports[0]))

    checks = run_slurm_checks(
        job,
        {**connected.nodes, **connected.failures},
        read,
        hardware,
        lambda: batch_of(job, make_placement(job, REHEARSAL, 1, facts, ports[0]), ports),
        render_launch,
        hours_of(job),
        accepted,
        frozenset(SECRETS.names()),
    )
    problems = [check.problem for check in checks if check.problem is not None]
    return PreflightReport(
        checks=tuple(checks),
        facts=facts,
        hardware={rank: answer for rank, answer in hardware.items() if isinstance(answer, Hardware)},
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
