"""Runs whose engine is in real Docker containers, over real sshd with the real supervisor. Only torchrun is a stand-in.

Each node has a Docker daemon of its own.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from backend.cluster.node_programs import FALLBACK_STOP, node_program
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.job.problems import ProblemsError
from backend.node.supervisor.processes import members
from backend.runs.controller import Controller
from backend.runs.records import NodeRecord
from backend.runs.states import RunState
from backend.runs.store import attempts
from backend.runs.store.store import Store
from tests.docker_daemons import (
    IMAGE,
    PATH,
    DockerDaemon,
    docker_daemons,
    image_of_links,
    image_registry,
    in_containers,
)
from tests.fault_table import add_row
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


def conclude(
    controller: Controller, run: str, fault: str, began: float, home: Path, daemons: list[DockerDaemon]
) -> None:
    """Add a row to the table of faults. No process and no container may be left."""
    row = add_row(fault, "docker", controller.snapshot(run), began, left=marked(home, run) + len(left(daemons)))
    assert row.left == 0, row


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
    assert [node.stop and node.stop["left"] for node in controller.snapshot(run).nodes] == [[], []]


def test_a_killed_supervisor_leaves_no_container(
    controller: Controller, job: Job, home: Path, daemons: list[DockerDaemon]
) -> None:
    run = controller.launch(with_mode(job, "ok", steps=10_000))
    wait_for(lambda: controller.points(run))
    began = time.time()
    os.kill(supervisor_of(home, run, 1), signal.SIGKILL)
    assert controller.wait(run, WITHIN_S) is RunState.FAILED
    conclude(controller, run, "supervisor killed", began, home, daemons)
    cause = controller.snapshot(run).cause
    assert cause is not None
    assert (cause.code, cause.node) == ("supervisor_gone", controller.snapshot(run).nodes[1].address)


def test_a_killed_worker_fails_the_run_with_its_signal(
    controller: Controller, job: Job, home: Path, daemons: list[DockerDaemon]
) -> None:
    run = controller.launch(with_mode(job, "ok", steps=10_000))
    wait_for(lambda: controller.points(run))
    began = time.time()
    for process in members(record_of(home, run, 1).mark):
        with suppress(ProcessLookupError):  # It may have ended with the one before.
            os.kill(process.pid, signal.SIGKILL)
    assert controller.wait(run, WITHIN_S) is RunState.FAILED
    conclude(controller, run, "worker killed", began, home, daemons)
    cause = controller.snapshot(run).cause
    assert cause is not None
    assert (cause.code, cause.node) == ("killed", controller.snapshot(run).nodes[1].address)


def test_a_killed_daemon_ends_the_run_and_its_container_is_removed_when_it_is_back(
    controller: Controller, job: Job, home: Path, daemons: list[DockerDaemon]
) -> None:
    run = controller.launch(with_mode(job, "ok", steps=10_000))
    wait_for(lambda: controller.points(run))
    began = time.time()
    daemons[1].stop(signal.SIGKILL)
    try:
        wait_for(lambda: marked(home, run) == 0)
    finally:
        daemons[1].start()
    assert controller.wait(run, WITHIN_S) is RunState.FAILED
    conclude(controller, run, "daemon killed", began, home, daemons)
    cause = controller.snapshot(run).cause
    assert cause is not None
    assert (cause.code, cause.node) == ("container_daemon_gone", controller.snapshot(run).nodes[1].address)


def test_an_image_that_one_node_lacks_is_named(controller: Controller, job: Job, daemons: list[DockerDaemon]) -> None:
    daemons[1].docker("tag", IMAGE, "kept:1")
    daemons[1].docker("rmi", IMAGE)
    try:
        (problem,) = controller.preflight(job).problems
    finally:
        daemons[1].docker("tag", "kept:1", IMAGE)
    assert (problem.code, problem.node) == ("container_image_missing", job.cluster.hosts[1].name)
    assert problem.field == "cluster.hosts[1].environments.llamafactory.container.image"


def test_an_image_with_other_content_is_named(controller: Controller, job: Job, daemons: list[DockerDaemon]) -> None:
    daemons[1].docker("tag", IMAGE, "kept:1")
    daemons[1].docker("import", "--message", "other", "-", IMAGE, stdin=image_of_links())
    try:
        problems = controller.preflight(job).problems
    finally:
        daemons[1].docker("tag", "kept:1", IMAGE)
    assert [(problem.code, problem.node) for problem in problems] == [
        ("container_image_differs", job.cluster.hosts[1].name)
    ]


def test_a_daemon_that_does_not_answer_is_named(controller: Controller, job: Job, daemons: list[DockerDaemon]) -> None:
    daemons[0].stop()
    try:
        problems = controller.preflight(job).problems
    finally:
        daemons[0].start()
    assert ("container_daemon_silent", job.cluster.hosts[0].name) in {(p.code, p.node) for p in problems}


def record_of(home: Path, run: str, rank: int) -> NodeRecord:
    store = Store(home / "megaboard.db")
    with store.read() as connection:
        record = attempts.nodes(connection, run, attempts.newest(connection, run))[rank]
    store.close()
    return record


def supervisor_of(home: Path, run: str, rank: int) -> int:
    return int(json.loads(Path(record_of(home, run, rank).folder, "pid").read_text())["pid"])


@pytest.fixture(scope="module")
def image(daemons: list[DockerDaemon], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the name of an image that a real registry has and no node."""
    with image_registry(daemons[0], tmp_path_factory.mktemp("registry"), "engine:1") as image:
        yield image


def with_image(job: Job, image: str) -> Job:
    hosts = []
    for host in job.cluster.hosts:
        (name, environment), *_ = host.environments.items()
        assert environment.container is not None
        container = replace(environment.container, image=image)
        hosts.append(replace(host, environments={name: replace(environment, container=container)}))
    return with_values(job, {"cluster.hosts": tuple(hosts)})


def test_an_image_is_pulled_on_all_nodes(controller: Controller, job: Job, image: str) -> None:
    pulled = with_image(job, image)
    assert {problem.code for problem in controller.preflight(pulled).problems} == {"container_image_missing"}
    layers: list[tuple[int, int]] = []
    assert controller.tasks.pull_image(pulled, lambda done, total: layers.append((done, total))) == ()
    assert layers[-1] == (NODES, NODES)
    assert controller.preflight(pulled).problems == ()


def test_an_image_that_the_registry_lacks_is_named_for_each_node(controller: Controller, job: Job, image: str) -> None:
    with pytest.raises(ProblemsError) as raised:
        controller.tasks.pull_image(with_image(job, image.replace("engine", "other")), lambda done, total: None)
    assert [(problem.code, problem.node) for problem in raised.value.problems] == [
        ("pull_failed", host.name) for host in job.cluster.hosts
    ]
    assert all("not found" in str(problem.values["lines"]) for problem in raised.value.problems)


def test_an_image_is_loaded_from_a_file(
    controller: Controller, job: Job, daemons: list[DockerDaemon], tmp_path: Path
) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(daemons[0].try_docker("save", IMAGE).stdout)
    daemons[1].docker("rmi", IMAGE)
    assert controller.tasks.pull_image(job, lambda done, total: None, str(archive)) == ()
    assert controller.preflight(job).problems == ()


def test_a_broken_file_is_named_and_gives_no_image(
    controller: Controller, job: Job, daemons: list[DockerDaemon], tmp_path: Path
) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(daemons[0].try_docker("save", IMAGE).stdout[:2000])
    other = with_image(job, "half:1")
    with pytest.raises(ProblemsError) as raised:
        controller.tasks.pull_image(other, lambda done, total: None, str(archive))
    assert {problem.code for problem in raised.value.problems} == {"pull_failed"}
    assert {problem.code for problem in controller.preflight(other).problems} == {"container_image_missing"}


def test_a_container_that_does_not_start_names_the_runtimes_message(
    controller: Controller, job: Job, daemons: list[DockerDaemon]
) -> None:
    hosts = list(job.cluster.hosts)
    environment = hosts[1].environments["llamafactory"]
    assert environment.container is not None
    options = (*environment.container.options, "--device=/dev/nothing")
    broken = replace(environment, container=replace(environment.container, options=options))
    hosts[1] = replace(hosts[1], environments={"llamafactory": broken})
    problems = controller.preflight(with_values(job, {"cluster.hosts": tuple(hosts)})).problems
    assert {problem.node for problem in problems} == {hosts[1].name}
    assert "/dev/nothing" in str(problems[0].values["detail"])


def test_a_shell_removes_a_container_whose_client_was_killed(daemons: list[DockerDaemon], tmp_path: Path) -> None:
    daemons[0].docker("create", "--name", "megaboard-ab12.0", IMAGE, "true")
    (tmp_path / "spec.json").write_text(json.dumps({"container": {"runtime": "docker"}, "mark": "ab12.0"}))
    command = ["/bin/sh", "-s", str(tmp_path), "ab12.0", "1", "--token", "T"]
    environment = {"PATH": PATH, "DOCKER_HOST": daemons[0].address}
    stop = {"input": node_program(FALLBACK_STOP), "capture_output": True, "check": True, "env": environment}
    assert subprocess.run(command, **stop).stdout == b'T{"left": []}\n'
    assert daemons[0].containers() == []
    environment["DOCKER_HOST"] = "unix:///nowhere"
    assert subprocess.run(command, **stop).stdout == b'T{"left": [[0, "megaboard-ab12.0", "?"]]}\n'
