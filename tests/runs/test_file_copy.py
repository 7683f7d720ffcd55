"""What a preflight found that node 0 can mend, and which files that means."""

import json
from typing import Any

import pytest

from backend.cluster.preflight.results import CheckResult, Checks
from backend.job.cluster import Cluster
from backend.job.job import Job, Model
from backend.job.problems import ProblemsError
from backend.job.training import Training
from backend.runs.launch.preflight import ConnectedNodes, PreflightReport
from backend.runs.tasks.file_copy import Missing, copy, find_missing, roots_to_copy
from tests.fakes import FakeNode

JOB = Job(
    cluster=Cluster(gpu="cpu", nodes=3, gpus_per_node=1),
    model=Model(path="/m"),
    training=Training(dataset="mine, pictures", dataset_dir="/d"),
)
ALL = Missing(model=(1,), info=(2,), data=(1, 2))


def found(name: Any, *codes: str | None) -> list[CheckResult]:
    """One check of three nodes: None where it is well, else the code of the problem."""
    checks = [Checks(rank, f"10.0.0.{rank}") for rank in range(3)]
    return [
        of.ok(name) if code is None else of.wrong(name, code, "model.path")
        for of, code in zip(checks, codes, strict=True)
    ]


def node_with(**entries: object) -> FakeNode:
    node = FakeNode()
    node.files["/d/dataset_info.json"] = json.dumps(entries).encode()
    return node


@pytest.mark.parametrize(
    ("checks", "missing"),
    [
        (found("model", None, None, None), None),
        (found("model", None, "model_missing", "model_missing"), Missing(model=(1, 2))),
        (found("model", "model_missing", "model_missing", None), None),
        (found("dataset", None, "dataset_info_missing", "dataset_file_missing"), Missing(info=(1,), data=(1, 2))),
        (found("dataset", None, "dataset_unknown", None), None),
        (found("output_dir", None, "not_writable", None), None),
    ],
)
def test_only_what_node_0_has_can_be_copied(checks: list[CheckResult], missing: Missing | None) -> None:
    assert find_missing(checks) == missing


def test_a_model_is_its_folder_and_data_the_files_it_names() -> None:
    node = node_with(mine={"file_name": "mine.json"}, other={"file_name": "o.json"}, pictures={"hf_hub_url": "x"})
    model, data = roots_to_copy(JOB, ALL, node)
    assert model == {"root": "/m", "names": None}
    assert data == {"root": "/d", "names": ["dataset_info.json", "mine.json"]}


def test_data_with_pictures_is_its_whole_folder() -> None:
    node = node_with(mine={"file_name": "mine.json", "columns": {"images": "images"}})
    assert roots_to_copy(JOB, ALL, node)[1] == {"root": "/d", "names": None}


@pytest.mark.parametrize("name", ["/else/mine.json", "../mine.json"])
def test_files_outside_the_folder_are_not_copied(name: str) -> None:
    missing = Missing(data=(1,))
    assert roots_to_copy(JOB, missing, node_with(mine={"file_name": name})) == [{"root": "/d", "names": []}]


def test_a_description_of_any_size_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.runs.tasks.file_copy.CHUNK_BYTES", 16)
    node = node_with(other={"file_name": "o" * 100}, mine={"file_name": "mine.json"})
    assert roots_to_copy(JOB, Missing(data=(1,)), node) == [{"root": "/d", "names": ["mine.json"]}]


@pytest.mark.parametrize(
    "text",
    [b'{"mine": {"file_na', b"[]", b"\xff{}", b"{" * 10_000, b" " * (17 << 20)],
    ids=["cut", "a list", "no text", "deep", "huge"],
)
def test_a_description_that_was_damaged_since_the_check_is_named(text: bytes) -> None:
    node = FakeNode()
    node.files["/d/dataset_info.json"] = text
    with pytest.raises(ProblemsError) as told:
        roots_to_copy(JOB, Missing(data=(1,)), node)
    (problem,) = told.value.problems
    assert (problem.code, problem.node, problem.values["path"]) == ("dataset_info_missing", node.name, "/d")


def test_a_copy_of_nothing_is_refused() -> None:
    with pytest.raises(ProblemsError) as told:
        copy(JOB, ConnectedNodes(nodes={}, failures={}), PreflightReport(), "run", lambda done, total: None)
    assert [problem.code for problem in told.value.problems] == ["nothing_to_copy"]
