"""LLaMA-Factory trains in real Docker containers on two nodes: saved, stopped, resumed and finished."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo.job import demo_job
from app.demo.local_nodes import LocalNodes
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.runs.controller import Controller
from backend.runs.states import RunState
from tests.docker_daemons import DockerDaemon, docker_daemons, in_containers
from tests.runs.gangs import marked
from tests.waiting import wait_for
from tools.programs import NODE_ENVIRONMENT

pytestmark = [pytest.mark.e2e, pytest.mark.engines]

NODES = 2
STEPS = 40
FIRST_STEP_S = 600.0


@pytest.fixture(scope="module")
def daemons() -> Iterator[list[DockerDaemon]]:
    with docker_daemons(Path(f"/tmp/megaboard-engine-{os.getpid()}"), NODES) as daemons:
        yield daemons


@pytest.fixture
def job(cluster: LocalNodes, daemons: list[DockerDaemon], tiny: Path) -> Job:
    shutil.copytree(tiny, cluster.folder, dirs_exist_ok=True)
    environment = NODE_ENVIRONMENT.resolve()  # A container sees no link to it.
    machines = in_containers(cluster, daemons, f"{environment}/bin/python", str(environment), sys.base_prefix)
    parsed, problems = parse_job(demo_job(cluster.folder, machines))
    assert parsed is not None, problems
    return with_values(parsed, {"training.max_steps": STEPS, "training.save_steps": STEPS})


def test_llama_factory_trains_saves_and_resumes_in_containers(
    controller: Controller, job: Job, home: Path, daemons: list[DockerDaemon]
) -> None:
    controller.start()
    report = controller.preflight(job)
    assert report.problems == (), report.problems
    run = controller.launch(job)
    wait_for(lambda: len(controller.points(run)) > 4, FIRST_STEP_S)
    assert all(daemon.containers() for daemon in daemons)
    controller.stop(run, save=True)
    assert controller.wait(run, FIRST_STEP_S) is RunState.STOPPED
    assert (marked(home, run), [daemon.containers() for daemon in daemons]) == (0, [[], []])
    controller.resume(run)
    assert controller.wait(run, FIRST_STEP_S) is RunState.FINISHED, controller.snapshot(run).cause
    points = controller.points(run)
    assert [point.step for point in points] == list(range(1, STEPS + 1))
    first, last = points[0].loss, points[-1].loss
    assert first is not None
    assert last is not None
    assert last < first
    assert (marked(home, run), [daemon.containers() for daemon in daemons]) == (0, [[], []])
