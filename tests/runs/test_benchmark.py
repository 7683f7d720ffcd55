"""The gang of the benchmark is stopped and cleaned up after any end. Its speeds are written to the cluster's
calibration."""

import json
from collections.abc import Sequence

import pytest

from backend.cluster.benchmark import Speeds
from backend.cluster.node import Result
from backend.job.cluster import Calibration, Cluster
from backend.job.job import Job
from backend.job.mapping import parse_job
from backend.job.problems import ProblemsError
from backend.node.benchmark import LIMIT_S
from backend.node.checks import software
from backend.runs.launch.preflight import ConnectedNodes
from backend.runs.tasks.benchmark import Clock, calibration_of, measure
from tests.cluster.gang import H100, hardware_answer, smi
from tests.fakes import FakeNode

SPEEDS = Speeds(
    device="NVIDIA H100 80GB HBM3",
    precision="bf16",
    matmul_tflops=700.123456,
    intra_node_bus_gb_per_s=360.0,
    inter_node_bus_gb_per_s=None,
    sizes={},
    slow=(),
)


def job_with(**known: object) -> Job:
    return Job(cluster=Cluster(gpu="h100-80g", nodes=1, gpus_per_node=8, calibration=Calibration(**known)))  # type: ignore[arg-type]


def test_the_speeds_go_into_the_calibration_of_this_gpu():
    assert calibration_of(job_with(), SPEEDS, "2026-11-21") == Calibration(
        gpu="h100-80g",
        probe_date="2026-11-21",
        matmul_tflops=700.1,
        matmul_precision="bf16",
        intra_node_bus_gb_per_s=360.0,
    )


def test_a_time_ratio_of_an_estimate_with_other_speeds_goes_and_the_memory_ratio_stays():
    known = {"gpu": "h100-80g", "run": "r", "run_date": "2026-11-01", "engine": "llamafactory-ddp"}
    calibration = calibration_of(job_with(**known, time_ratio=1.2, memory_ratio=1.03), SPEEDS, "2026-11-21")
    assert (calibration.time_ratio, calibration.memory_ratio, calibration.run, calibration.engine) == (
        None,
        1.03,
        "r",
        "llamafactory-ddp",
    )


def test_nothing_of_another_gpu_stays():
    calibration = calibration_of(job_with(gpu="a100-80g", run="r", memory_ratio=1.03), SPEEDS, "2026-11-21")
    assert (calibration.gpu, calibration.memory_ratio, calibration.run) == ("h100-80g", None, None)


class Ticking:
    """A clock that advances only in waits."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def clock(self) -> Clock:
        return Clock(now=lambda: self.seconds, wait=self._wait)

    def _wait(self, seconds: float) -> None:
        self.seconds += seconds


def connected(*, left: list[object] | None = None, exits: bytes | None = None) -> ConnectedNodes:
    """Return two nodes that start their programs. `exits` has the record that each supervisor writes at once."""
    facts = {**software.facts({"master": None, "modules": {}}), "home": "/home/me"}
    nodes = {}
    for rank in range(2):
        node = FakeNode(f"10.0.0.{rank + 1}")
        node.on("facts", reply=facts).on("hardware", reply=hardware_answer())
        node.on("free_port", reply={"port": 29500})
        node.on("stop", reply={"left": left if left and rank else []})
        node.on("sh", reply=Result(code=0, out="", err=""))

        def start(argv: Sequence[str], stdin: bytes, node: FakeNode = node) -> Result:
            if exits is not None:
                node.files[f"{argv[argv.index('start') + 1]}/exit"] = exits
            return Result(code=0, out=f'{argv[-1]}{{"ok": true}}\n', err="")

        node.on("start", reply=start)
        nodes[rank] = node
    return ConnectedNodes(nodes=nodes, failures={})


def job_on_two() -> Job:
    job, problems = parse_job(
        {
            "cluster": {
                "gpu": "h100-80g",
                "nodes": 2,
                "gpus_per_node": 1,
                "environments": {"llamafactory": {"python": "/opt/python"}},
                "hosts": [{"address": "10.0.0.1"}, {"address": "10.0.0.2"}],
            }
        }
    )
    assert job is not None, problems
    return job


def told(connected: ConnectedNodes, word: str) -> list[int]:
    """Return the nodes that received a request."""
    return [rank for rank, node in connected.nodes.items() if any(word in argv for argv in node.ran)]  # type: ignore[attr-defined]


def test_nodes_that_do_not_end_in_time_are_ended_and_cleaned():
    met, time = connected(), Ticking()
    with pytest.raises(ProblemsError) as error:
        measure(job_on_two(), met, "run", clock=time.clock())
    assert [problem.code for problem in error.value.problems] == ["measure_timed_out"]
    assert LIMIT_S < time.seconds < LIMIT_S + 60
    assert (told(met, "stop"), told(met, "sh")) == ([0, 1], [0, 1])


def test_what_could_not_be_ended_is_named_and_its_folder_stays():
    met = connected(left=[[7, "python", "D"]])
    with pytest.raises(ProblemsError) as error:
        measure(job_on_two(), met, "run", clock=Ticking().clock())
    assert [problem.code for problem in error.value.problems] == ["measure_timed_out", "measure_left"]
    left = error.value.problems[1]
    assert (left.node, left.values["folder"]) == ("10.0.0.2", "/home/me/.megaboard/run/1/node1")
    assert told(met, "sh") == [0]


def test_a_node_that_ended_badly_ends_the_others_at_once():
    met, time = connected(exits=b'{"code": 1, "time": 5.0}'), Ticking()
    with pytest.raises(ProblemsError) as error:
        measure(job_on_two(), met, "run", clock=time.clock())
    assert [problem.code for problem in error.value.problems] == ["measure_failed"]
    assert (time.seconds, told(met, "stop")) == (0.0, [0, 1])


def with_rows(met: ConnectedNodes) -> ConnectedNodes:
    """Write a row of every rank."""
    row = {"node": 0, "local_rank": 0, "device": "CPU", "precision": "fp32", "matmul_tflops": 0.1, "intra": {}}
    for rank, node in met.nodes.items():
        content = json.dumps({**row, "rank": rank, "node": rank, "inter": {"1": 2.0}, "pairs": {}})
        node.files[f"/home/me/.megaboard/run/1/node{rank}/measured.rank{rank}.json"] = content.encode()  # type: ignore[attr-defined]
    return met


def test_every_rank_that_ended_well_has_left_its_row():
    met = with_rows(connected(exits=b'{"code": 0, "time": 5.0}'))
    result = measure(job_on_two(), met, "run", clock=Ticking().clock())
    assert result.speeds is not None
    assert (result.speeds.inter_node_bus_gb_per_s, result.problems) == (2.0, ())
    assert told(met, "sh") == [0, 1]


def test_a_gpu_that_others_were_using_is_named():
    met = with_rows(connected(exits=b'{"code": 0, "time": 5.0}'))
    met.nodes[1].on("hardware", reply=hardware_answer(smi=smi(H100.replace(" 4,", " 2048,"))))  # type: ignore[attr-defined]
    (problem,) = measure(job_on_two(), met, "run", clock=Ticking().clock()).problems
    assert (problem.code, problem.node, problem.values["used_mib"]) == ("measure_busy", "10.0.0.2", 2048)
