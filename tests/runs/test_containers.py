"""Runs whose engine is in real Docker containers, over real sshd with the real supervisor. Only torchrun is a stand-in.

Each node has a Docker daemon of its own.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from backend.job.job import Job
from backend.job.mapping import parse_job
from backend.node.supervisor.processes import members
from backend.runs.controller import Controller
from backend.runs.states import RunState
from backend.runs.store import attempts
from backend.runs.store.store import Store
from tests.docker_daemons import IMAGE, DockerDaemon, docker_daemons, in_containers
from tests.runs.gangs import ENGINE, NODES, marked, stand_in_job, steps_of, with_mode
from tests.waiting import WITHIN_S, wait_for

pytestmark = [pytest.mark.contract, pytest.mark.e2e]


@pytest.fixture(scope="module")
def daemons() -> Iterator[list[DockerDaemon]]:
    folder = Path(f"/tmp/megaboard-docker-{os.getpid()}")
    with docker_daemons(folder, NODES) as daemons:
        yield daemons


@pytest.fixture(scope="module")
def job(cluster: LocalNodes, daemons: list[DockerDaemon]) -> Job:
    mapping = stand_in_job(cluster.folder, f'PYTHONPATH={ENGINE} exec {sys.executable} -S -B "$@"')
    folders = (sys.prefix, sys.base_prefix, str(ENGINE.parents[2]))
    machines = in_containers(cluster, daemons, f"{cluster.folder}/python", *folders)
    parsed, problems = parse_job({**mapping, "cluster": machines})
    assert parsed is not None, problems
    return parsed


def left(daemons: list[DockerDaemon]) -> list[str]:
    return [name for daemon in daemons for name in daemon.containers()]


def test_a_run_trains_in_containers_and_leaves_none(
    controller: Controller, job: Job, home: Path, daemons: list[DockerDaemon]
) -> None:
    report = controller.preflight(job)
    assert report.problems == (), report.problems
    run = controller.launch(with_mode(job, "ok", steps=40, step_s=0.05))
    wait_for(lambda: all(daemon.containers() for daemon in daemons))
    assert controller.wait(run, WITHIN_S) is RunState.FINISHED, controller.snapshot(run).cause
    assert steps_of(controller, run) == {rank: list(range(1, 41)) for rank in range(NODES)}
    assert (marked(home, run), left(daemons)) == (0, [])


def test_a_stop_proves_that_no_process_and_no_container_is_left(
    controller: Controller, job: Job, home: Path, daemons: list[DockerDaemon]
) -> None:
    run = controller.launch(with_mode(job, "ok", steps=10_000))
    wait_for(lambda: controller.points(run))
    controller.stop(run)
    assert controller.wait(run, WITHIN_S) is RunState.STOPPED
    assert (marked(home, run), left(daemons)) == (0, [])
    assert [node.left for node in controller.snapshot(run).nodes] == [[], []]
