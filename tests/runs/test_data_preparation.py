"""The node that prepares the data, the name of the data, and the commands of all nodes."""

from dataclasses import replace

import pytest
import yaml

from backend.cluster.inventory.software import NodeFacts
from backend.cluster.node import NodeError, Result
from backend.engines import CONFIG, Rendered, render
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.job.problems import ProblemsError
from backend.runs.launch.data_preparation import prepared
from backend.runs.launch.launch import make_placement
from tests.fakes import FakeNode

FACTS = {rank: NodeFacts(home="/home/me", hostname="h", python="3.11") for rank in range(3)}


@pytest.fixture
def job() -> Job:
    parsed, problems = parse_job(
        {
            "cluster": {
                "gpu": "h100-80g", "nodes": 3, "gpus_per_node": 8,
                "hosts": [{"address": f"10.0.0.{rank}"} for rank in range(3)],
                "environments": {"llamafactory": {"python": "/lf/bin/python"}},
            },
            "model": {"preset": "qwen3-8b", "path": "/m"},
            "training": {
                "dataset": "mine", "dataset_dir": "/d", "template": "qwen3", "output_dir": "/runs",
                "prepare": {"shuffle": True},
            },
        }
    )  # fmt: skip
    assert parsed is not None, problems
    return parsed


def nodes_of(digest: str = "d", sharing: tuple[int, ...] = (0, 1, 2)) -> dict[int, FakeNode]:
    """Return three nodes. A file that node 0 writes exists on the nodes that share its disk."""
    nodes = {rank: FakeNode(f"10.0.0.{rank}") for rank in range(3)}
    nodes[0].on("digest", reply={"digest": digest}).on("rm", reply=Result(code=0, out="", err=""))
    for rank in sharing:
        nodes[rank].files, nodes[rank].folders = nodes[0].files, nodes[0].folders
    return nodes


def prepare(job: Job, nodes: dict[int, FakeNode] | None = None) -> Rendered:
    placement = make_placement(job, "run", 1, FACTS, 29500)
    return prepared(job, render(job, placement), placement, nodes or nodes_of(), FACTS)


def target_of(rendered: Rendered) -> str:
    return str(yaml.safe_load(rendered.files[CONFIG])["tokenized_path"])


def test_without_the_wish_nothing_is_asked_and_nothing_changes(job: Job) -> None:
    plain = with_values(job, {"training.prepare.shuffle": False})
    placement = make_placement(plain, "run", 1, FACTS, 29500)
    rendered = render(plain, placement)
    assert prepared(plain, rendered, placement, {}, FACTS) is rendered


def test_nodes_that_see_node_0s_disk_wait_for_it(job: Job) -> None:
    rendered = prepare(job)
    before = render(job, make_placement(job, "run", 1, FACTS, 29500))
    for rank, command in enumerate(rendered.commands):
        folder = f"/home/me/.megaboard/run/1/node{rank}"
        front = ("/lf/bin/python", f"{folder}/prepare_data.py", folder, str(rank), "0")
        assert command.argv == (*front, *before.commands[rank].argv)
    assert target_of(rendered).startswith("/runs/tokenized/")
    assert {"prepare_data.py", "tokenise.py", "prepare.json"} <= set(rendered.files)


def test_a_node_that_does_not_makes_its_own_and_torchrun_has_patience(job: Job) -> None:
    rendered = prepare(job, nodes_of(sharing=(0, 2)))
    assert [command.argv[4] for command in rendered.commands] == ["0", "1", "0"]
    assert all("--rdzv_conf" in command.argv for command in rendered.commands)


def test_the_probe_of_the_disk_is_removed(job: Job) -> None:
    nodes = nodes_of()
    prepare(job, nodes)
    (probe,) = nodes[0].files
    assert ("rm", "-f", "--", probe) in nodes[0].ran


@pytest.mark.parametrize(
    "values",
    [
        {"training.cutoff_len": 512},
        {"training.template": "default"},
        {"training.packing": True},
        {"training.seed": 7},
        {"training.prepare.shuffle": False, "training.prepare.tokenize": True},
        {"engine": "llamafactory-zero3"},
        {"extra": {"val_size": 0.1}},
    ],
)
def test_data_that_would_differ_has_another_name(job: Job, values: dict[str, object]) -> None:
    assert target_of(prepare(with_values(job, values))) != target_of(prepare(job))


def test_so_has_data_of_other_files_and_of_other_programs(job: Job) -> None:
    assert target_of(prepare(job, nodes_of(digest="e"))) != target_of(prepare(job))
    placement = make_placement(job, "run", 1, FACTS, 29500)
    newer = {rank: replace(facts, modules={"transformers": "6"}) for rank, facts in FACTS.items()}
    assert target_of(prepared(job, render(job, placement), placement, nodes_of(), newer)) != target_of(prepare(job))


@pytest.mark.parametrize("values", [{"training.learning_rate": 1e-3}, {"parallel.tensor": 2}, {"name": "other"}])
def test_what_does_not_shape_the_data_leaves_its_name(job: Job, values: dict[str, object]) -> None:
    assert target_of(prepare(with_values(job, values))) == target_of(prepare(job))


def test_a_node_that_fails_is_named(job: Job) -> None:
    nodes = nodes_of()
    nodes[1].broken = NodeError("lost", "10.0.0.1", detail="down")
    with pytest.raises(ProblemsError) as raised:
        prepare(job, nodes)
    assert [(problem.code, problem.node) for problem in raised.value.problems] == [("lost", "10.0.0.1")]
