"""What Slurm does to a run: it refuses, ends allocations, loses nodes, and is restarted."""

import os
import signal
import time
from pathlib import Path

import pytest

from backend.job.mapping import with_values
from backend.job.problems import ProblemsError
from backend.runs.states import EventKind, RunState
from tests.slurm.cluster import SlurmCluster
from tests.slurm.server import Server, inside, quick_job
from tests.waiting import wait_for

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("scheduler", "values", "field"),
    [
        ({"partition": "nope"}, {}, "cluster.scheduler.partition"),
        ({"constraint": "a100"}, {}, "cluster.scheduler.constraint"),
        ({}, {"cluster.nodes": 3}, "cluster.nodes"),
        ({}, {"cluster.scheduler.login.port": 23}, "cluster.scheduler.login.address"),
    ],
)
def test_a_request_that_slurm_refuses_is_refused_before_the_launch(
    slurm: SlurmCluster, tmp_path: Path, scheduler: dict[str, str], values: dict[str, object], field: str
) -> None:
    def story(server: Server) -> None:
        job = with_values(quick_job(slurm, tmp_path, **scheduler), values)
        with pytest.raises(ProblemsError) as refused:
            server.controller.launch(job)
        (problem,) = refused.value.problems
        assert problem.field == field, problem
        assert problem.node is not None
        assert problem.node.startswith(slurm.addresses[0])
        assert slurm.jobs() == []

    inside(slurm, tmp_path, story)


def test_a_run_root_that_the_nodes_do_not_see_is_named(slurm: SlurmCluster, tmp_path: Path) -> None:
    def story(server: Server) -> None:
        # Every node has its own /run/local.
        job = with_values(quick_job(slurm, tmp_path), {"cluster.run_root": "/run/local/runs"})
        run = server.controller.launch(job)
        assert server.end(run, 300) is RunState.FAILED, server.story(run)
        cause = server.controller.snapshot(run).cause
        assert cause is not None
        assert (cause.code, cause.field) == ("slurm_run_root_unseen", "cluster.run_root"), server.story(run)

    inside(slurm, tmp_path, story)


def test_a_node_that_dies_is_named_and_the_run_restarts(own_slurm: SlurmCluster, tmp_path: Path) -> None:
    def story(server: Server) -> None:
        run = server.controller.launch(quick_job(own_slurm, tmp_path, steps=100_000), restarts=1)
        server.wait_for_step(run, 3)
        own_slurm.set_link(2, "down")
        own_slurm.kill_node(2)
        wait_for(lambda: any(event.kind is EventKind.RESTARTING for event in server.events(run)), 300)
        problem = next(e for e in server.events(run) if e.kind is EventKind.RESTARTING).detail["problem"]
        assert problem["code"] in ("slurm_node_failed", "slurm_node_silent", "communication_failed"), server.story(run)
        server.controller.stop(run)
        assert server.end(run, 300) is RunState.STOPPED, server.story(run)

    inside(own_slurm, tmp_path, story)


def test_a_slurmd_that_is_killed_does_not_harm_the_run(slurm: SlurmCluster, tmp_path: Path) -> None:
    def story(server: Server) -> None:
        run = server.controller.launch(quick_job(slurm, tmp_path, steps=60, step_s=0.1))
        server.wait_for_step(run, 3)
        began = time.time()
        assert slurm.signal(2, "slurmd -D", signal.SIGKILL) == 1
        server.wait_for_step(run, 30)
        slurm.start_slurmd(2)
        assert server.end(run, 300) is RunState.FINISHED, server.story(run)
        server.conclude(run, "slurmd killed", began)

    inside(slurm, tmp_path, story)


def test_a_run_survives_a_restart_of_slurmctld_and_of_the_server(slurm: SlurmCluster, tmp_path: Path) -> None:
    def story(server: Server) -> None:
        run = server.controller.launch(quick_job(slurm, tmp_path, steps=150, step_s=0.1))
        server.wait_for_step(run, 3)
        server.close()
        # It saves its jobs. Killed without that, Slurm itself may queue a job again whose start it did not save.
        assert slurm.signal(0, "slurmctld -D", signal.SIGTERM) == 1
        server.open()
        server.wait_for_step(run, 40)
        wait_for(lambda: any(event.kind is EventKind.NODE_SILENT for event in server.events(run)))
        slurm.start_controller()
        assert server.end(run, 300) is RunState.FINISHED, server.story(run)
        assert server.controller.snapshot(run).step == 150

    inside(slurm, tmp_path, story)


def test_a_user_who_cancels_the_job_in_slurm_stops_the_run(slurm: SlurmCluster, tmp_path: Path) -> None:
    def story(server: Server) -> None:
        run = server.controller.launch(quick_job(slurm, tmp_path, steps=100_000), restarts=3)
        server.wait_for_step(run, 3)
        slurm.slurm("scancel", "--name", f"megaboard-{run}-1")
        assert server.end(run, 300) is RunState.STOPPED, server.story(run)

    inside(slurm, tmp_path, story)


def test_a_rank_that_is_killed_fails_the_run_with_its_cause(slurm: SlurmCluster, tmp_path: Path) -> None:
    def story(server: Server) -> None:
        run = server.controller.launch(quick_job(slurm, tmp_path, steps=100_000))
        server.wait_for_step(run, 3)
        began = time.time()
        for pid in slurm.processes(2, "worker"):
            os.kill(pid, signal.SIGKILL)
        assert server.end(run, 300) is RunState.FAILED, server.story(run)
        server.conclude(run, "worker killed", began)
        cause = server.controller.snapshot(run).cause
        assert cause is not None
        assert (cause.code, cause.node) == ("killed", "node2"), server.story(run)
        assert slurm.jobs() == []

    inside(slurm, tmp_path, story)


def test_a_supervisor_that_is_killed_leaves_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    def story(server: Server) -> None:
        run = server.controller.launch(quick_job(slurm, tmp_path, steps=100_000))
        server.wait_for_step(run, 3)
        guard, supervisor = slurm.processes(2, "supervisor.py run")
        assert guard < supervisor
        began = time.time()
        os.kill(supervisor, signal.SIGKILL)
        assert server.end(run, 240) is RunState.FAILED, server.story(run)
        server.conclude(run, "supervisor killed", began)
        cause = server.controller.snapshot(run).cause
        assert cause is not None
        assert (cause.code, cause.node) == ("supervisor_gone", "node2"), server.story(run)
        assert slurm.jobs() == []

    inside(slurm, tmp_path, story)


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_preempted_run_goes_on_whether_or_not_slurm_announces_the_preemption(
    slurm: SlurmCluster, tmp_path: Path, is_announced: bool
) -> None:
    def story(server: Server) -> None:
        slurm.configure(send_user_signal=is_announced)
        slurm.slurm("scontrol", "reconfigure")
        run = server.controller.launch(quick_job(slurm, tmp_path, steps=100_000, partition="low", time_limit="5"))
        server.wait_for_step(run, 3)
        slurm.preempt("hog")
        wait_for(lambda: any(event.kind is EventKind.RESTARTING for event in server.events(run)), 60)
        detail = next(event for event in server.events(run) if event.kind is EventKind.RESTARTING).detail
        assert (detail["problem"]["code"], detail["counted"]) == ("slurm_preempted", False), server.story(run)
        # With the announcement, the ranks were asked to save.
        stopped = [server.controller.snapshot(run).nodes[rank].exit for rank in (0, 1)]
        assert {end["reason"] for end in stopped if end} == {"stopped" if is_announced else "scheduler"}
        server.controller.stop(run)
        assert server.end(run, 60) is RunState.STOPPED, server.story(run)
        slurm.slurm("scancel", "-n", "hog")

    inside(slurm, tmp_path, story)
