"""Runs that Slurm starts: real slurmctld, two real slurmd, and a server that connects to the login node alone."""

from pathlib import Path

import pytest

from backend.runs.states import EventKind, RunState
from tests.slurm.cluster import SlurmCluster
from tests.slurm.server import Server, inside, quick_job
from tests.waiting import wait_for

pytestmark = pytest.mark.e2e


def test_a_run_goes_through_slurms_queue_to_its_end(slurm: SlurmCluster, tmp_path: Path) -> None:
    def story(server: Server) -> None:
        run = server.controller.launch(quick_job(slurm, tmp_path))
        assert server.end(run) is RunState.FINISHED, server.story(run)
        shown = server.controller.snapshot(run)
        assert shown.step == 20
        assert [node.address for node in shown.nodes] == ["node1", "node2"]
        assert "RUNNING" in server.scheduler_states(run)
        assert slurm.jobs() == []

    inside(slurm, tmp_path, story)


def test_a_stop_leaves_no_process_and_no_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    def story(server: Server) -> None:
        run = server.controller.launch(quick_job(slurm, tmp_path, steps=100_000))
        server.wait_for_step(run, 3)
        assert len(server.left(run)) >= 4
        server.controller.stop(run)
        assert server.end(run, 60) is RunState.STOPPED, server.story(run)
        assert slurm.jobs() == []

    inside(slurm, tmp_path, story)


def test_a_run_that_waits_in_slurms_queue_says_why_and_can_be_cancelled(slurm: SlurmCluster, tmp_path: Path) -> None:
    def story(server: Server) -> None:
        first = server.controller.launch(quick_job(slurm, tmp_path, steps=100_000))
        server.wait_for_step(first, 3)
        second = server.controller.launch(quick_job(slurm, tmp_path, time_limit="1"))
        wait_for(lambda: server.scheduler_states(second) == ["PENDING"])
        (queued,) = (event.detail for event in server.events(second) if event.kind is EventKind.SCHEDULER)
        assert (queued["reason"], queued["position"]) in (("Resources", 1), ("Priority", 1), ("", 1)), queued
        assert server.controller.snapshot(second).state is RunState.STARTING
        server.controller.stop(second, save=True)
        assert server.end(second, 60) is RunState.STOPPED, server.story(second)
        server.controller.stop(first)
        assert server.end(first, 60) is RunState.STOPPED

    inside(slurm, tmp_path, story)
