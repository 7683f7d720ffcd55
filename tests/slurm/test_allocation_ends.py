"""What ends an allocation before the training: preemption and the time limit. LLaMA-Factory really trains."""

from pathlib import Path

import pytest

from backend.runs.records import Event
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, metrics
from tests.nodes import needs_node_environment
from tests.slurm.cluster import SlurmCluster
from tests.slurm.server import Server, inside, tiny_job
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.engines, pytest.mark.timeout(900), needs_node_environment]

WITHIN_S = 180


def restarts_of(server: Server, run: str) -> list[Event]:
    return [event for event in server.events(run) if event.kind is EventKind.RESTARTING]


def begun_again(server: Server, run: str, attempt: int) -> int:
    """Wait until an attempt trains, and return the step of the checkpoint that it began with."""
    wait_for(lambda: server.controller.snapshot(run).attempt == attempt, WITHIN_S)
    with server.store.read() as connection:
        return attempts.checkpoint_step(connection, run, attempt) or 0


def test_a_preempted_run_saves_and_goes_on_and_so_does_one_at_its_time_limit(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    def story(server: Server) -> None:
        # Slurm looks at time limits twice a minute. With this much time before the end, it signals at the first look.
        job = tiny_job(slurm, tmp_path, steps=100_000, partition="low", time_limit="1", signal_s=90)
        run = server.controller.launch(job)
        server.wait_for_step(run, 5)
        slurm.preempt("hog")
        wait_for(lambda: len(restarts_of(server, run)) == 1, WITHIN_S)
        preempted = restarts_of(server, run)[0].detail
        assert (preempted["problem"]["code"], preempted["counted"]) == ("slurm_preempted", False), server.story(run)
        slurm.slurm("scancel", "-n", "hog")
        saved = begun_again(server, run, 2)
        assert saved >= 5
        server.wait_for_step(run, saved + 5)
        slurm.shorten(f"megaboard-{run}-2")
        wait_for(lambda: len(restarts_of(server, run)) == 2, WITHIN_S)
        limited = restarts_of(server, run)[1].detail
        assert (limited["problem"]["code"], limited["counted"]) == ("slurm_time_limit", False), server.story(run)
        saved_again = begun_again(server, run, 3)
        assert saved_again >= saved + 5
        server.wait_for_step(run, saved_again + 5)
        server.controller.stop(run)
        assert server.end(run, WITHIN_S) is RunState.STOPPED, server.story(run)
        with server.store.read() as connection:
            steps = [point.step for point in metrics.points(connection, run)]
        assert steps == list(range(1, len(steps) + 1)), "no step is lost or doubled"

    inside(slurm, tmp_path, story)
