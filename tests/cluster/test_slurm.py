"""What Slurm's commands print, and the checks of a launch through it, on a prepared login node."""

import pytest

from backend.cluster.node import NodeError, Result
from backend.cluster.preflight.results import Checks
from backend.cluster.preflight.slurm import check_time
from backend.cluster.slurm import Partition, find_partitions
from backend.job.cluster import Container, Environment
from backend.job.job import Job
from backend.job.launch_rules import check_nodes, on_login_node
from backend.job.mapping import parse_job, with_values
from tests.fakes import FakeNode

SINFO = """\
gpu*|up|2-00:00:00|10/4/2/16|192|2063000+|gpu:h100:8(S:0-1)|h100,nvlink
debug|down|30:00|0/1/0/1|16|64000|(null)|(null)
"""


def job_by_slurm(**scheduler: object) -> Job:
    login = {"address": "login.cluster"}
    cluster = {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8, "scheduler": {"login": login, **scheduler},
               "environments": {"llamafactory": {"python": "/lf/bin/python"}}}  # fmt: skip
    job, problems = parse_job({"cluster": cluster, "model": {"preset": "qwen3-8b"}})
    assert job is not None, problems
    return job


def test_partitions_are_read_with_their_limits_and_gpus() -> None:
    node = FakeNode().on("sinfo", reply=Result(code=0, out=SINFO, err=""))
    gpu, debug = find_partitions(node)
    assert gpu == Partition(name="gpu", is_default=True, is_up=True, time_limit="2-00:00:00", nodes=16, idle=4,
                            cpus="192", memory_mib="2063000+", gres="gpu:h100:8(S:0-1)",
                            features="h100,nvlink")  # fmt: skip
    assert (debug.name, debug.is_default, debug.is_up, debug.gres, debug.features) == ("debug", False, False, "", "")


def test_lines_that_are_no_partition_are_left_out() -> None:
    noise = "Welcome to the cluster\n" + SINFO + "x|y\n" + "a|up|1|n/a|2|3||\n"
    found = find_partitions(FakeNode().on("sinfo", reply=Result(code=0, out=noise, err="")))
    assert [(one.name, one.nodes) for one in found] == [("gpu", 16), ("debug", 1), ("a", 0)]


@pytest.mark.parametrize(("code", "expected"), [(127, "slurm_missing"), (124, "slurm_silent"), (1, "slurm_silent")])
def test_a_login_node_without_an_answer_is_named(code: int, expected: str) -> None:
    node = FakeNode("login").on("sinfo", reply=Result(code=code, out="", err="no"))
    with pytest.raises(NodeError) as error:
        find_partitions(node)
    assert (error.value.code, error.value.problem.node) == (expected, "login")


def test_a_time_limit_below_the_estimated_hours_is_a_warning_with_the_number_of_slurm_jobs() -> None:
    checks = Checks(0, "login")
    (result,) = check_time(job_by_slurm(time_limit="10"), checks, 25.0)
    assert result.problem is not None
    assert (result.status, result.problem.code, result.problem.values["jobs"]) == ("warning", "slurm_time_short", 3)
    assert [one.status for one in check_time(job_by_slurm(time_limit="2-00:00:00"), checks, 25.0)] == ["ok"]
    assert check_time(job_by_slurm(), checks, 25.0) == []


def test_a_container_of_the_environment_is_refused_with_slurm() -> None:
    job = job_by_slurm()
    assert check_nodes(job) == []
    environment = Environment(python="/p", container=Container(image="train:1"))
    (problem,) = check_nodes(with_values(job, {"cluster.environments": {"llamafactory": environment}}))
    assert (problem.code, problem.field) == (
        "container_beside_scheduler",
        "cluster.environments.llamafactory.container.image",
    )


def test_work_on_the_shared_disk_has_the_login_node_as_its_only_host() -> None:
    alone = on_login_node(job_by_slurm())
    assert (alone.cluster.nodes, [host.address for host in alone.cluster.hosts]) == (1, ["login.cluster"])
    assert alone.cluster.scheduler is None
