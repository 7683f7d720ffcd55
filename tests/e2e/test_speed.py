"""A cluster's speed, measured on two demo nodes: real sshd, real supervisors, real torchrun, gloo on CPU."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from app.demo.local_nodes import LocalNodes
from backend.job.cluster import Environment
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.job.problems import ProblemsError, errors
from backend.node.tools import MARK
from backend.runs.controller import Controller
from tools.programs import NODE_PYTHON

pytestmark = [pytest.mark.e2e]

NODES = 2


@pytest.fixture
def job(cluster: LocalNodes) -> Job:
    mapping = {"cluster": cluster.cluster_mapping(str(NODE_PYTHON)), "engine": "llamafactory-ddp"}
    parsed, problems = parse_job(mapping)
    assert parsed is not None, problems
    return parsed


def test_the_nodes_are_measured_together_and_nothing_is_left(
    controller: Controller, job: Job, cluster: LocalNodes, record_property: Callable[[str, object], None]
) -> None:
    speed = controller.tasks.measure_speed(job)
    assert errors(speed.problems) == []  # On shared cores one node may be slower than the others.
    speeds = speed.speeds
    assert speeds is not None
    record_property("speeds", asdict(speeds))
    assert (speeds.device, speeds.precision) == ("CPU", "fp32")
    assert speeds.matmul_tflops > 0
    assert speeds.intra_node_bus_gb_per_s is None
    assert speeds.inter_node_bus_gb_per_s is not None
    assert speeds.inter_node_bus_gb_per_s > 0
    assert list(cluster.run_root.iterdir()) == [cluster.run_root / "locks"]
    assert list((cluster.run_root / "locks").iterdir()) == []
    assert _marked() == []


def test_a_node_that_fails_ends_the_whole_gang_and_its_words_are_reported(
    controller: Controller, job: Job, cluster: LocalNodes, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    fails = 'case "$*" in *torch.distributed.run*) echo no fabric here >&2; exit 7;; esac'
    python.write_text(f'#!/bin/sh\n{fails}\nexec {NODE_PYTHON} "$@"\n')
    python.chmod(0o755)
    good, bad = job.cluster.hosts[:2]
    bad = replace(bad, environments={"llamafactory": Environment(python=str(python))})
    pair = with_values(job, {"cluster.nodes": 2, "cluster.hosts": (good, bad)})
    with pytest.raises(ProblemsError) as raised:
        controller.tasks.measure_speed(pair)
    (problem,) = raised.value.problems
    assert (problem.code, problem.node) == ("measure_failed", f"127.0.0.1:{bad.port}")
    assert problem.values["lines"] == "no fabric here"
    assert list(cluster.run_root.iterdir()) == [cluster.run_root / "locks"]
    assert _marked() == []


def _marked() -> list[str]:
    """Return the processes of this machine with any mark that run the measurement."""
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if f"{MARK}=".encode() in environment and b"benchmark.py" in command:
            result.append(process.name)
    return result
