"""Stops over real sshd of nodes that have changed since the launch.

test_controller.py has the other stops of real processes, and test_gang_monitor.py those of simulated nodes.
"""

import json
import os
import signal
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from backend.job.cluster import Environment
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.runs.controller import Controller
from backend.runs.states import RunState
from tests.runs.gangs import NODES, marked, steps_of, with_mode
from tests.waiting import WITHIN_S, wait_for

pytestmark = [pytest.mark.contract, pytest.mark.e2e]  # A whole gang takes seconds.


@pytest.mark.parametrize("supervised", [True, False])
def test_a_run_whose_environment_was_deleted_is_stopped_all_the_same(
    controller: Controller, job: Job, cluster: LocalNodes, home: Path, supervised: bool
) -> None:
    python = cluster.folder / "soon_gone"
    python.write_text((cluster.folder / "python").read_text())
    python.chmod(0o755)
    gone = with_values(job, {"cluster.environments": {"llamafactory": Environment(python=str(python))}})
    run = controller.launch(with_mode(gone, "ok", steps=10_000))
    wait_for(lambda: len(steps_of(controller, run)) == NODES)
    python.unlink()
    if not supervised:
        for node in controller.snapshot(run).nodes:
            _kill_supervisor(cluster, run, node.rank)
    controller.stop(run)
    assert controller.wait(run, WITHIN_S) is RunState.STOPPED
    assert marked(home, run) == 0
    assert [node.stop and node.stop["left"] for node in controller.snapshot(run).nodes] == [[]] * NODES


def _kill_supervisor(cluster: LocalNodes, run: str, rank: int) -> None:
    identity = json.loads((cluster.run_root / run / "1" / f"node{rank}" / "pid").read_text())
    os.kill(identity["pid"], signal.SIGKILL)
