"""A spare takes the rank of a node that was lost: real sshd, a real gang, and the lost node kept out until cleared."""

from dataclasses import replace
from pathlib import Path

import pytest

from backend.job.cluster import Host
from backend.job.job import Job
from backend.job.problems import ProblemsError
from backend.runs.states import EventKind, RunState
from backend.runs.supervise import restart
from tests.chaos.lab import Lab
from tests.chaos.scene import scene
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos]

WITHIN_S = 120


def with_last_host_as_spare(job: Job) -> Job:
    *hosts, spare = job.cluster.hosts
    return replace(job, cluster=replace(job.cluster, nodes=len(hosts), hosts=tuple(hosts), spares=(spare,)))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_spare_takes_the_rank_of_a_node_that_dies(
    lab: Lab, folder: Path, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "FIRST_WAIT_S", 1.0)

    def play() -> None:
        with scene(lab, folder) as it:
            it.timing = replace(it.timing, lost_after_s=5.0)
            it.job = with_last_host_as_spare(it.job)
            hosts: tuple[Host, ...] = it.job.cluster.hosts
            spare = it.job.cluster.spares[0]
            variables = {"TRAINER_STEPS": "150", "TRAINER_STEP_S": "0.05"}
            job = replace(it.job, environment={**it.job.environment, **variables})
            it.run = it.controller.launch(job, restarts=1)
            wait_for(lambda: len(it.stored(1 - rank)) >= 3, WITHIN_S)
            it.strike(lambda: (lab.set_link(rank, "down"), lab.kill_node(rank)))
            assert it.end(WITHIN_S) is RunState.FINISHED, it.events()
            (replaced,) = (event for event in it.events() if event.kind is EventKind.NODE_REPLACED)
            assert (replaced.rank, replaced.detail["node"], replaced.detail["spare"]) == (
                rank,
                hosts[rank].name,
                spare.name,
            )
            expected = [host.name for host in hosts]
            expected[rank] = spare.name
            assert [record.address for record in it.attempts()[2]] == expected
            # The lost node is kept out of the next launch, until a user clears it.
            assert list(it.controller.cordons()) == [hosts[rank].name]
            with pytest.raises(ProblemsError) as refused:
                it.controller.launch(job)
            assert hosts[rank].name in {problem.node for problem in refused.value.problems}
            it.conclude(f"kill -9 node's init, with a spare (rank {rank})", state=RunState.FINISHED, points=False)
            it.controller.uncordon(hosts[rank].name)
            assert list(it.controller.cordons()) == []

    lab.inside(play)
