"""A spare takes the rank of a node that was lost or is slow: real sshd, a real gang, and the node kept out."""

from dataclasses import replace
from pathlib import Path

import pytest

from backend.job.cluster import Host
from backend.job.job import Job
from backend.job.problems import ProblemsError
from backend.runs.diagnosis import straggler
from backend.runs.states import EventKind, RunState
from backend.runs.supervise import restart
from tests.chaos.lab import Lab
from tests.chaos.scene import scene
from tests.waiting import wait_for

pytestmark = [pytest.mark.chaos]

WITHIN_S = 120
SMI = """#!/bin/sh
case "$1" in
*utilization.gpu*) [ -e /run/local/slow ] && echo "0, 99, 100, 80000, 300, 95, 1200, 0x40" ||
    echo "0, 99, 100, 80000, 300, 60, 1755, 0x0" ;;
esac
"""
"""A stand-in for nvidia-smi. On the slow node, the GPU says that heat limits its clock."""


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


@pytest.mark.parametrize("rank", [0, 1])
def test_a_spare_takes_the_rank_of_a_node_whose_hot_gpu_makes_the_others_wait(
    lab: Lab, folder: Path, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "FIRST_WAIT_S", 1.0)
    monkeypatch.setattr(straggler, "NEWEST_S", 1.0)
    for node in range(lab.nodes):
        (lab.disk(node) / "nvidia-smi").write_text(SMI)
        (lab.disk(node) / "nvidia-smi").chmod(0o755)
    (folder / "setup.sh").write_text("export PATH=/run/local:$PATH\n")

    def play() -> None:
        with scene(lab, folder) as it:
            it.timing = replace(it.timing, slow_look_s=0.5, slow_after_s=2.0)
            job = with_last_host_as_spare(it.job)
            hosts, (spare,) = job.cluster.hosts, job.cluster.spares
            environment = replace(job.cluster.environments["llamafactory"], setup=str(folder / "setup.sh"))
            job = replace(
                job,
                cluster=replace(job.cluster, environments={"llamafactory": environment}),
                environment={**job.environment, "TRAINER_STEPS": "300", "TRAINER_STEP_S": "0.05"},
            )
            it.run = it.controller.launch(job, restarts=1)
            wait_for(lambda: len(it.stored(0)) >= 80, WITHIN_S)
            it.strike((lab.disk(rank) / "slow").touch)
            assert it.end(WITHIN_S) is RunState.FINISHED, it.events()
            kinds = [event.kind for event in it.events()]
            assert kinds.index(EventKind.NODE_SLOW) < kinds.index(EventKind.SAVE_ASKED)
            (replaced,) = (event for event in it.events() if event.kind is EventKind.NODE_REPLACED)
            assert (replaced.rank, replaced.detail["node"]) == (rank, hosts[rank].name)
            assert [record.address for record in it.attempts()[2]][rank] == spare.name
            cordon = it.controller.cordons()[hosts[rank].name]
            assert cordon.problem.code == "node_slow_gpu"
            it.conclude(f"slow node (hot GPU), with a spare (rank {rank})", state=RunState.FINISHED)

    lab.inside(play)
