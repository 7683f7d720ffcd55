"""The checks of a launch through Slurm: the login node's files and software, and the request itself.

The nodes are not known before the launch, so nothing is asked of them. The login node must see their files.
"""

import math
import re
from collections.abc import Callable, Mapping

from backend.cluster.inventory.hardware import Hardware
from backend.cluster.inventory.software import NodeFacts
from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import ends_of_all
from backend.cluster.preflight.accepted_configurations import AcceptedConfigurations
from backend.cluster.preflight.engine_args import check_engine_args
from backend.cluster.preflight.files import ASK_S, ask_paths
from backend.cluster.preflight.readings import GangReadings, NodeReadings
from backend.cluster.preflight.registry import OF_LOGIN_NODE, run_node_checks
from backend.cluster.preflight.results import CheckName, CheckResult, Checks
from backend.cluster.program_answers.checks import Lock
from backend.cluster.slurm import test_request
from backend.engines import Rendered
from backend.job.job import Job

ENGINE_CHECKS: tuple[CheckName, ...] = ("engine", "deepspeed")
"""Checks of the engine's packages. The login node cannot open the image of cluster.scheduler.container."""
NAMES: tuple[CheckName, ...] = (
    *(name for check in OF_LOGIN_NODE if check.is_for_every_job for name in check.names),
    "scheduler",
)
"""Names of the results that are `skipped` when the login node does not answer."""


def run_slurm_checks(
    job: Job,
    nodes: Mapping[int, Node | NodeError],
    facts: Mapping[int, NodeFacts | NodeError],
    hardware: Mapping[int, Hardware | NodeError],
    script: Callable[[], str],
    render: Callable[[], Rendered],
    hours: float | None,
    accepted: AcceptedConfigurations,
    secret_names: frozenset[str] = frozenset(),
) -> list[CheckResult]:
    """Return the results of all checks. `script`: the batch script of a launch; `hours`: the estimated training."""
    node, fact = nodes[0], facts.get(0)
    checks = Checks(0, job.cluster.connected_hosts[0].name)
    if isinstance(node, NodeError):
        return [checks.raised("login", node), checks.skipped("python"), *map(checks.skipped, NAMES)]
    if not isinstance(fact, NodeFacts):
        start = checks.raised("python", fact) if fact is not None else checks.skipped("python")
        return [checks.ok("login"), start, *map(checks.skipped, NAMES)]
    paths = ends_of_all({0: node}, lambda rank, login: ask_paths(job, rank, login), ASK_S + 10)
    results = _check_login_node(
        NodeReadings(
            job=job,
            checks=checks,
            facts=fact,
            hardware_answer=hardware[0],
            paths_answer=paths[0],
            lock_answer=Lock(),
            secret_names=secret_names,
        )
    )
    results += check_request(job, checks, node, script())
    results += check_time(job, checks, hours)
    gang = GangReadings(
        job=job,
        checks={0: checks},
        nodes={0: node},
        facts={0: fact},
        hardware={rank: answer for rank, answer in hardware.items() if isinstance(answer, Hardware)},
        port=0,
        render=render,
        results=results,
        accepted=accepted,
    )
    return results + check_engine_args(gang)


def _check_login_node(readings: NodeReadings) -> list[CheckResult]:
    """Return the results of the login node's files and software."""
    scheduler = readings.job.cluster.scheduler
    if scheduler is None or scheduler.container is None:
        return run_node_checks(readings, OF_LOGIN_NODE)
    outside_image = [check for check in OF_LOGIN_NODE if not set(check.names) & set(ENGINE_CHECKS)]
    return [*run_node_checks(readings, outside_image), readings.checks.skipped("engine")]


def check_request(job: Job, checks: Checks, node: Node, script: str) -> list[CheckResult]:
    """Check that Slurm accepts the request: partition, account, time limit, number of nodes and GPUs."""
    try:
        said = test_request(node, script)
    except NodeError as error:
        return [checks.raised("scheduler", error)]
    start = re.search(r"start at (\S+)", said)
    return [checks.ok("scheduler", start=start[1] if start else "")]


def check_time(job: Job, checks: Checks, hours: float | None) -> list[CheckResult]:
    """Warn if the estimated training does not end within the time limit. The run goes on by itself in a new job."""
    scheduler = job.cluster.scheduler
    limit_s = scheduler.time_limit_s if scheduler is not None else None
    if limit_s is None or hours is None:
        return []
    field = "cluster.scheduler.time_limit"
    if hours * 3600 <= limit_s:
        return [checks.ok("time_limit", hours=round(hours, 1))]
    values = {"hours": f"{hours:.1f}", "limit": f"{limit_s / 3600:.1f}", "jobs": math.ceil(hours * 3600 / limit_s)}
    return [checks.warning("time_limit", "slurm_time_short", field, **values)]
