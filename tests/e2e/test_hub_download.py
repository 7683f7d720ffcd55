"""A model comes from a local hub to real SSH nodes; then the nodes are ready for a launch."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.demo.job import demo_job
from app.demo.local_nodes import LocalNodes
from app.text import LANGUAGES, render_problem
from backend.job.job import Job
from backend.job.mapping import parse_job, with_values
from backend.job.problems import ProblemsError
from backend.runs.controller import Controller
from backend.runs.rank_secrets import SECRETS
from tests.local_hub import TOKEN, LocalHub, files_of, local_hub
from tools.programs import NODE_PYTHON

pytestmark = pytest.mark.e2e

NODES = 1


@pytest.fixture(scope="module")
def job(cluster: LocalNodes, tiny: Path) -> Job:
    shutil.copytree(tiny, cluster.folder, dirs_exist_ok=True)
    parsed, problems = parse_job(demo_job(cluster.folder, cluster.cluster_mapping(str(NODE_PYTHON))))
    assert parsed is not None, problems
    return parsed


@pytest.fixture
def hub(job: Job) -> Iterator[LocalHub]:
    folder = Path(str(job.model.path))
    with local_hub() as hub:
        hub.repositories["tiny/model"] = files_of(folder)
        yield hub


def test_a_gated_model_is_downloaded_with_a_token_and_the_nodes_are_ready(
    controller: Controller, job: Job, hub: LocalHub, tmp_path: Path
) -> None:
    target = tmp_path / "models" / "tiny"
    job = with_values(job, {"model.path": str(target), "model.hub": "tiny/model", "model.hub_endpoint": hub.address})
    assert [problem.code for problem in controller.preflight(job).problems] == ["model_missing"]
    hub.gated.add("tiny/model")
    with pytest.raises(ProblemsError) as raised:
        controller.tasks.download(job, lambda done, total: None)
    (problem,) = raised.value.problems
    assert (problem.code, problem.values["url"]) == ("download_gated", f"{hub.address}/tiny/model")
    SECRETS.put("HF_TOKEN", TOKEN)
    try:
        assert controller.tasks.download(job, lambda done, total: None) == ()
    finally:
        SECRETS.forget("HF_TOKEN")
    assert controller.preflight(job).problems == ()
    assert {file.name for file in target.iterdir()} == set(hub.repositories["tiny/model"])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []


def test_a_data_set_comes_into_the_folder_of_the_data(
    controller: Controller, job: Job, hub: LocalHub, tmp_path: Path
) -> None:
    hub.repositories["datasets/owner/rows"] = {"rows.jsonl": b"{}\n"}
    job = with_values(job, {"training.dataset_dir": str(tmp_path / "data"), "model.hub_endpoint": hub.address})
    assert controller.tasks.download(job, lambda done, total: None, "owner/rows") == ()
    assert (tmp_path / "data" / "rows" / "rows.jsonl").read_bytes() == b"{}\n"


@pytest.mark.parametrize(("name", "code"), [("rows", "bad_format"), ("owner/rows", "download_not_found")])
def test_a_data_set_that_no_hub_has_is_named_at_its_own_field(
    controller: Controller, job: Job, hub: LocalHub, tmp_path: Path, name: str, code: str
) -> None:
    job = with_values(job, {"training.dataset_dir": str(tmp_path / "data"), "model.hub_endpoint": hub.address})
    with pytest.raises(ProblemsError) as raised:
        controller.tasks.download(job, lambda done, total: None, name)
    (problem,) = raised.value.problems
    assert (problem.code, problem.field) == (code, "dataset")
    assert not (tmp_path / "data").exists() or not list((tmp_path / "data").iterdir())


def test_a_model_of_modelscope_needs_its_package_on_the_node(
    controller: Controller, job: Job, hub: LocalHub, tmp_path: Path
) -> None:
    values = {"model.path": str(tmp_path / "tiny"), "model.hub": "tiny/model", "model.hub_kind": "modelscope"}
    job = with_values(job, {**values, "model.hub_endpoint": hub.address})
    with pytest.raises(ProblemsError) as raised:
        controller.tasks.download(job, lambda done, total: None)
    (problem,) = raised.value.problems
    assert (problem.code, problem.field) == ("download_no_modelscope", "model.hub_kind")
    assert problem.node == job.cluster.hosts[0].name
    for lang in LANGUAGES:
        assert "modelscope" in render_problem(lang, problem)["fix"]


def test_a_job_without_a_repository_says_so(controller: Controller, job: Job) -> None:
    with pytest.raises(ProblemsError) as raised:
        controller.tasks.download(job, lambda done, total: None)
    assert [problem.code for problem in raised.value.problems] == ["no_repository"]
