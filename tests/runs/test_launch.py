import json
import re
from dataclasses import replace

import pytest

from backend.cluster.inventory.software import NodeFacts
from backend.cluster.node import NodeError
from backend.cluster.node_group import GroupError
from backend.engines import CheckedJob, NodeCommand, Rendered
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.job.problems import ProblemsError
from backend.runs.launch import launch
from backend.runs.launch.launch_lock import is_launching, launch_lock
from tests.cluster.jobs import make_job
from tests.fakes import FakeNode

FACTS = NodeFacts(home="/home/me", hostname="h", python="3.11", interface="eth0")


@pytest.fixture
def job() -> Job:
    parsed, problems = parse_job(
        {
            "name": "my-job",
            "cluster": {
                "gpu": "cpu",
                "nodes": 2,
                "gpus_per_node": 1,
                "environments": {"llamafactory": {"python": "~/venv/bin/python", "setup": "~/env.sh"}},
                "hosts": [
                    {"address": "10.0.0.1", "fabric_address": "192.168.0.1"},
                    {"address": "10.0.0.2", "port": 23},
                ],
                "port_range": [29500, 29503],
            },
            "engine": "llamafactory-ddp",
        }
    )
    assert parsed is not None, problems
    return parsed


@pytest.fixture
def attempt(job: Job) -> launch.Attempt:
    facts = {0: FACTS, 1: FACTS}
    placement = launch.make_placement(job, "the-run", 1, facts, 29501)
    commands = tuple(NodeCommand(rank=rank, argv=("py", str(rank)), environment={"A": "b"}) for rank in (0, 1))
    return launch.Attempt(
        run="the-run",
        number=1,
        job=job,
        placement=placement,
        rendered=Rendered(files={"config.yaml": "a: 1\n"}, commands=commands),
        records=launch.make_records(job, placement, facts),
        grace_s=10.0,
    )


def test_run_ids_carry_time_and_name_and_differ(job: Job) -> None:
    ids = {launch.new_run_id(job, 1_795_262_400.0) for _ in range(8)}
    assert all(re.fullmatch(r"20261121-120000-my-job-[0-9a-f]{4}", run_id) for run_id in ids)
    assert len(ids) > 1


def test_ports_are_of_the_range_in_any_order(job: Job) -> None:
    assert sorted(launch.candidate_ports(job)) == [29500, 29501, 29502, 29503]


def test_places_are_absolute_and_the_master_is_what_others_dial(attempt: launch.Attempt) -> None:
    placement = attempt.placement
    assert (placement.master_address, placement.master_port) == ("192.168.0.1", 29501)
    assert [node.folder for node in placement.nodes] == [f"/home/me/.megaboard/the-run/1/node{rank}" for rank in (0, 1)]
    assert (placement.nodes[0].python, placement.nodes[0].setup) == ("/home/me/venv/bin/python", "/home/me/env.sh")


def test_every_node_has_a_mark_of_its_own(attempt: launch.Attempt) -> None:
    first, second = (record.mark for record in attempt.records)
    assert (first[-2:], second[-2:]) == (".0", ".1")
    assert first[:-2] == second[:-2]
    assert len(first) > 16


def test_upload_puts_everything_a_node_needs_into_its_folder(attempt: launch.Attempt) -> None:
    node = FakeNode()
    launch.upload(attempt, 1, node)
    folder = "/home/me/.megaboard/the-run/1/node1"
    names = {path.removeprefix(f"{folder}/") for path in node.files}
    assert names == {"supervisor.py", "entry.py", *launch.BESIDE_ENTRY, "config.yaml", "spec.json"}
    assert f"{folder}/control" in node.folders
    spec = json.loads(node.files[f"{folder}/spec.json"])
    assert spec["lock"] == "/home/me/.megaboard/locks/10.0.0.2_23"
    assert (spec["argv"], spec["environment"], spec["setup"]) == (["py", "1"], {"A": "b"}, "/home/me/env.sh")
    assert (spec["mark"], spec["stall_s"]) == (attempt.records[1].mark, 2100)


@pytest.mark.parametrize(
    ("key", "value", "stall_s"), [("training.ddp_timeout_s", 60, 360), ("training.stall_s", 90, 90)]
)
def test_a_stall_waits_for_what_the_collectives_say_unless_the_job_has_it_otherwise(
    attempt: launch.Attempt, key: str, value: int, stall_s: int
) -> None:
    changed = replace(attempt, job=with_values(attempt.job, {key: value}))
    assert launch.make_spec(changed, 0)["stall_s"] == stall_s


def test_nothing_is_started_unless_every_upload_succeeded(attempt: launch.Attempt) -> None:
    nodes = {0: FakeNode("10.0.0.1"), 1: FakeNode("10.0.0.2")}
    nodes[1].broken = NodeError("node_io", "10.0.0.2", path="/", detail="disk full")
    with pytest.raises(GroupError) as caught:
        launch.start_all(attempt, nodes, lambda *told: None)
    assert [problem.node for problem in caught.value.problems] == ["10.0.0.2"]
    assert nodes[0].ran == []


def test_start_is_recorded_before_and_after_and_a_refusal_names_the_holder(attempt: launch.Attempt) -> None:
    nodes = {0: FakeNode("10.0.0.1"), 1: FakeNode("10.0.0.2")}
    nodes[0].on("start", reply={"ok": True, "pid": 7})
    nodes[1].on("start", reply={"ok": False, "reason": "lock_held", "holder": {"run": "other"}})
    raised: list[tuple[object, ...]] = []
    with pytest.raises(GroupError) as caught:
        launch.start_all(attempt, nodes, lambda kind, rank, detail: raised.append((kind.value, rank)))
    (problem,) = caught.value.problems
    assert (problem.code, problem.values["run"]) == ("node_locked", "other")
    assert sorted(raised) == [("node_started", 0), ("node_starting", 0), ("node_starting", 1)]


def test_a_launch_lock_is_seen_by_others_and_gone_afterwards(home) -> None:  # type: ignore[no-untyped-def]
    assert not is_launching(home, "r")
    with launch_lock(home, "r"):
        assert is_launching(home, "r")
        with pytest.raises(BlockingIOError), launch_lock(home, "r"):
            pass
    assert not is_launching(home, "r")
    assert list((home / "launching").iterdir()) == []


def test_a_job_that_could_not_be_read_back_from_the_store_is_refused():
    job = make_job()
    CheckedJob(job)
    with pytest.raises(ProblemsError) as caught:
        CheckedJob(with_values(job, {"environment": {"LONG": "x" * 300_000}}))
    assert [problem.code for problem in caught.value.problems] == ["file_too_large"]
