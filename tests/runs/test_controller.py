"""Runs over real sshd with the real supervisor; only torchrun is a stand-in (engine/), so that a run takes a second."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.demo.local_nodes import LocalNodes
from app.wizard.launch_session import LaunchSession
from backend import engines
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.problems import ProblemsError
from backend.runs.controller import Controller
from backend.runs.launch.preflight import warning_key
from backend.runs.states import EventKind, RunState
from tests.runs.gangs import NODES, marked, steps_of, with_mode
from tests.waiting import WITHIN_S, wait_for

pytestmark = pytest.mark.contract


@pytest.mark.e2e
def test_a_run_from_launch_to_finish(
    controller: Controller, job: Job, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Job] = []
    check_all = engines.check_all
    monkeypatch.setattr(engines, "check_all", lambda job: [checked.append(job), *check_all(job)][1:])
    session = LaunchSession(controller, time.time)
    for act in (session.check, session.launch):
        act(with_mode(job, "ok"))
        wait_for(lambda: not session.state().is_busy)
    assert session.state().problems == ()
    assert len(checked) == 1, "the launch takes over the job of the check"
    run = session.state().run
    assert run is not None
    assert controller.snapshot(run).state in (RunState.RUNNING, RunState.FINISHED)
    assert controller.wait(run, WITHIN_S) is RunState.FINISHED
    shown = controller.snapshot(run)
    assert (shown.step, shown.total_steps, shown.cause) == (20, 20, None)
    assert shown.tokens_per_s == pytest.approx(job.global_batch * 64 / 0.05)
    assert [node.state for node in shown.nodes] == ["finished"] * NODES
    assert steps_of(controller, run) == {rank: list(range(1, 21)) for rank in range(NODES)}
    assert "torchrun stand-in started" in controller.log(run, 1, "out.log")
    assert marked(home, run) == 0
    assert [(line.id, line.state, line.nodes, line.step) for line in controller.runs()] == [
        (run, RunState.FINISHED, NODES, 20)
    ]


@pytest.mark.e2e  # A whole gang takes seconds.
def test_a_model_without_an_estimate_is_launched_stopped_and_resumed(controller: Controller, job: Job) -> None:
    unknown = with_values(job, {"model.hf_config": {"model_type": "brand_new"}})
    report = controller.preflight(unknown)
    assert (report.problems, report.warnings) == ((), ())
    assert {check.problem.code for check in report.checks if check.problem} == {"space_unknown"}
    run = controller.launch(with_mode(unknown, "ok", steps=10_000), accepted_warnings=())
    for _ in range(2):
        wait_for(lambda: len(steps_of(controller, run)) == NODES)
        controller.stop(run)
        assert controller.wait(run, WITHIN_S) is RunState.STOPPED
        controller.resume(run, checkpoint=0)
    controller.stop(run)
    assert controller.wait(run, WITHIN_S) is RunState.STOPPED
    codes = {problem.code for problem in controller.measured(run)[1].problems}
    assert codes <= {"calibrate_few_steps", "model_not_estimated"}


def test_preflight_shows_new_host_keys_and_is_green_once_they_are_confirmed(
    cluster: LocalNodes, open_controller: Callable[..., Controller], job: Job, home: Path
) -> None:
    (home / "known_hosts").unlink()
    calls: list[str] = []
    controller = open_controller(audit=lambda action, **fields: calls.append(action))
    first = controller.preflight(job)
    assert {key.port for key in first.unknown_host_keys} == {host.port for host in cluster.hosts()}
    assert {problem.code for problem in first.problems} == {"host_key_unknown"}
    with pytest.raises(ProblemsError):
        controller.launch(job)
    assert controller.runs() == []
    controller.accept_host_keys(first.unknown_host_keys)
    second = controller.preflight(job)
    assert (second.problems, second.unknown_host_keys) == ((), ())
    assert {check.status for check in second.checks} == {"ok"}
    assert calls == ["accept_host_key"] * NODES


@pytest.mark.e2e  # A whole gang takes seconds.
def test_one_failing_node_ends_the_gang_and_is_named(controller: Controller, job: Job, home: Path) -> None:
    run = controller.launch(with_mode(job, "fail@1", steps=10_000))
    assert controller.wait(run, WITHIN_S) is RunState.FAILED
    shown = controller.snapshot(run)
    assert shown.cause is not None
    assert (shown.cause.code, shown.cause.node) == ("module_missing", shown.nodes[1].address)
    assert "No module named 'gone'" in str(shown.cause.values["lines"])
    assert [node.state for node in shown.nodes] == ["stopped", "failed"]
    assert [node.stop["left"] for node in shown.nodes if node.stop] == [[]] * NODES
    assert marked(home, run) == 0


@pytest.mark.e2e  # A whole gang takes seconds.
def test_stop_leaves_nothing_whatever_the_workers_do(controller: Controller, job: Job, home: Path) -> None:
    run = controller.launch(with_mode(job, "stubborn@0,orphan@1", steps=10_000))
    wait_for(lambda: len(steps_of(controller, run)) == NODES)
    assert marked(home, run) > 0
    controller.stop(run)
    assert controller.wait(run, WITHIN_S) is RunState.STOPPED
    assert marked(home, run) == 0
    assert [node.stop["left"] for node in controller.snapshot(run).nodes if node.stop] == [[]] * NODES
    with pytest.raises(ProblemsError) as caught:
        controller.stop(run)
    assert caught.value.problems[0].code == "run_ended"


@pytest.mark.e2e  # A whole gang takes seconds.
def test_stop_with_save_lets_the_ranks_end_by_themselves(controller: Controller, job: Job, home: Path) -> None:
    run = controller.launch(with_mode(job, "ok", steps=10_000))
    wait_for(lambda: len(steps_of(controller, run)) == NODES)
    controller.stop(run, save=True)
    assert controller.wait(run, WITHIN_S) is RunState.STOPPED
    assert "saved" in controller.log(run, 0, "rank0.log")
    assert [node.exit["code"] for node in controller.snapshot(run).nodes if node.exit] == [0] * NODES
    assert marked(home, run) == 0


@pytest.mark.e2e  # A whole gang takes seconds.
def test_a_second_launch_on_the_same_nodes_is_refused_and_names_the_holder(
    open_controller: Callable[..., Controller], job: Job, home: Path
) -> None:
    controllers = [open_controller(), open_controller()]
    ends: list[str | ProblemsError] = []

    def launch(controller: Controller) -> None:
        try:
            ends.append(controller.launch(with_mode(job, "ok", steps=10_000)))
        except ProblemsError as error:
            ends.append(error)

    threads = [threading.Thread(target=launch, args=(one_controller,)) for one_controller in controllers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (run,) = [end for end in ends if isinstance(end, str)]
    (refusal,) = [end for end in ends if isinstance(end, ProblemsError)]
    assert (refusal.problems[0].code, refusal.problems[0].values["run"]) == ("node_taken", run)
    controllers[1].stop(run)
    assert controllers[0].wait(run, WITHIN_S) is RunState.STOPPED
    assert marked(home, run) == 0


@pytest.mark.e2e  # A whole gang takes seconds.
def test_a_node_that_cannot_be_started_leaves_none_running(
    controller: Controller, job: Job, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backend.runs.launch import launch

    real = launch.make_spec

    def spoiled(attempt: launch.Attempt, rank: int) -> dict[str, object]:
        return real(attempt, rank) | ({"argv": ["/nowhere/python"]} if rank == 1 else {})

    monkeypatch.setattr(launch, "make_spec", spoiled)
    with pytest.raises(ProblemsError) as caught:
        controller.launch(with_mode(job, "ok", steps=10_000))
    (problem,) = caught.value.problems
    (line,) = controller.runs()
    assert (problem.code, problem.node) == ("start_failed", controller.snapshot(line.id).nodes[1].address)
    assert line.state is RunState.FAILED
    assert marked(home, line.id) == 0
    monkeypatch.undo()
    assert controller.wait(controller.launch(with_mode(job, "ok", steps=2)), WITHIN_S) is RunState.FINISHED, (
        "all nodes are free"
    )


@pytest.mark.e2e
def test_a_path_missing_on_the_nodes_is_refused_before_anything_starts(
    controller: Controller, job: Job, home: Path
) -> None:
    with pytest.raises(ProblemsError) as caught:
        controller.launch(with_values(job, {"model.path": "/nowhere"}))
    assert {problem.code for problem in caught.value.problems} == {"model_missing"}
    (line,) = controller.runs()
    assert line.state is RunState.FAILED
    with pytest.raises(ProblemsError) as caught:
        controller.resume(line.id)
    assert {problem.code for problem in caught.value.problems} == {"model_missing"}, "it has no checkpoints to look for"


@pytest.mark.e2e
def test_warnings_stand_in_the_way_of_whoever_has_not_accepted_them(controller: Controller, job: Job) -> None:
    # A plan for GPUs on nodes that have none.
    planned = with_values(job, {"cluster.gpu": "h100-80g"})
    with pytest.raises(ProblemsError) as refused:
        controller.launch(planned, accepted_warnings=())
    codes = {problem.code for problem in refused.value.problems}
    assert codes == {"warnings_not_accepted", "no_nvidia_smi"}
    first, *others = controller.preflight(planned).warnings
    with pytest.raises(ProblemsError) as refused:
        controller.launch(planned, accepted_warnings={warning_key(first)})
    # What one node warned of does not stand for the others.
    assert [problem.node for problem in refused.value.problems[1:]] == [problem.node for problem in others]
    assert not any(node.state == "started" for run in controller.runs() for node in controller.snapshot(run.id).nodes)


@pytest.mark.e2e
def test_a_queued_run_whose_warnings_nobody_accepted_ends_by_name_until_somebody_does(
    controller: Controller, job: Job
) -> None:
    run = controller.launch(
        with_values(with_mode(job, "ok"), {"cluster.gpu": "h100-80g"}), queue=True, accepted_warnings=()
    )
    assert controller.wait(run, WITHIN_S, takes_turn=True) is RunState.FAILED
    shown = controller.snapshot(run)
    assert shown.cause is not None
    assert (shown.cause.code, shown.attempt) == ("warnings_not_accepted", 0)
    assert [(problem.code, problem.node) for problem in shown.warnings] == [
        ("no_nvidia_smi", host.name) for host in job.cluster.hosts
    ]
    problem, *remainder = map(warning_key, shown.warnings)
    controller.accept_warnings(run, [problem, "of no check"])
    assert controller.wait(run, WITHIN_S, takes_turn=True) is RunState.FAILED
    assert [warning_key(left) for left in controller.snapshot(run).warnings] == remainder
    controller.accept_warnings(run, remainder)
    assert controller.wait(run, WITHIN_S, takes_turn=True) is RunState.FINISHED
    passed = [event for event in controller.snapshot(run).events if event.kind is EventKind.WARNINGS_PASSED]
    assert [warning["node"] for warning in passed[0].detail["warnings"]] == [host.name for host in job.cluster.hosts]
    assert controller.snapshot(run).warnings == ()


def test_a_host_that_is_down_is_named_and_no_run_is_made(controller: Controller, job: Job) -> None:
    hosts = (job.cluster.hosts[0], replace(job.cluster.hosts[1], port=1))
    down = replace(job, cluster=replace(job.cluster, hosts=hosts))
    with pytest.raises(ProblemsError) as caught:
        controller.launch(down)
    assert [(p.code, p.node) for p in caught.value.problems] == [("unreachable", "127.0.0.1:1")]
    assert controller.runs() == []


@pytest.mark.e2e  # A whole gang takes seconds.
def test_a_killed_server_goes_on_where_it_was_and_loses_and_doubles_nothing(
    open_controller: Callable[..., Controller], job: Job, home: Path
) -> None:
    """Only a real SIGKILL of a real process shows that no state is only in memory."""
    job_file = home / "job.json"
    job_file.write_text(json.dumps(_mapping(with_mode(job, "ok", steps=60, step_s=0.05))))
    server = subprocess.Popen([sys.executable, "-c", SERVER, home, job_file], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    run = server.stdout.readline().strip()
    controller = open_controller()
    wait_for(lambda: len(controller.points(run)) >= 5)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    server.stdout.close()
    controller.start()
    assert controller.wait(run, WITHIN_S) is RunState.FINISHED
    assert steps_of(controller, run) == {rank: list(range(1, 61)) for rank in range(NODES)}
    assert marked(home, run) == 0


@pytest.mark.e2e  # A whole gang takes seconds.
def test_a_server_killed_while_launching_leaves_nothing_running(
    open_controller: Callable[..., Controller], job: Job, home: Path
) -> None:
    job_file = home / "job.json"
    job_file.write_text(json.dumps(_mapping(with_mode(job, "ok", steps=10_000))))
    script = SERVER.replace("run = ", DIE_AFTER_START + "run = ")
    server = subprocess.run([sys.executable, "-c", script, home, job_file], check=False)
    assert server.returncode == -signal.SIGKILL
    controller = open_controller()
    (line,) = controller.runs()
    assert line.state is RunState.STARTING
    assert marked(home, line.id) > 0
    controller.start()
    wait_for(lambda: controller.runs()[0].state.is_final)
    shown = controller.snapshot(line.id)
    assert (shown.state, shown.cause and shown.cause.code) == (RunState.FAILED, "launch_interrupted")
    assert marked(home, line.id) == 0


def _mapping(job: Job) -> dict[str, Any]:
    from backend.job.mapping import to_mapping

    return dict(to_mapping(job))


SERVER = """
import json, sys, time
from pathlib import Path
from backend.cluster.ssh.host_keys import KnownHosts
from backend.job.mapping import parse_job
from backend.runs.controller import Controller
from backend.runs.store.store import Store

home = Path(sys.argv[1])
job, _ = parse_job(json.loads(Path(sys.argv[2]).read_text()))
controller = Controller(home, Store(home / "megaboard.db"), KnownHosts(home / "known_hosts"))
controller.start()
run = controller.launch(job)
print(run, flush=True)
time.sleep(60)
"""

DIE_AFTER_START = """
import os
from backend.runs.launch import launch
real = launch.start_supervisor
launch.start_supervisor = lambda record, node: (real(record, node), os.kill(os.getpid(), 9))
"""
