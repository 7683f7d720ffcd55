"""A recipe or a file fills the draft, but the nodes and their folders stay."""

from pathlib import Path

import pytest

from app.services import Services
from app.text import LANGUAGES
from app.wizard.draft_state import read
from app.wizard.events import change
from app.wizard.sources import FetchResult, fetch
from app.wizard.start import recipe_list
from backend.job.job import Job
from backend.job.presets import recipes

YAML = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ndo_train: true\nfinetuning_type: full\ncutoff_len: 1024\n"
HOSTS = [{"address": "10.0.0.1"}, {"address": "10.0.0.2"}]


@pytest.fixture
def services(tmp_path: Path):
    opened = Services.open(tmp_path)
    opened.draft.edit("cluster.hosts", HOSTS)
    yield opened
    opened.close()


def job_after(services: Services, request: dict[str, str]) -> tuple[Job, FetchResult]:
    result = fetch(services, request)
    assert result.problems == ()
    assert change(services, result.edits) == ()
    job = read(services.draft.job_mapping(), services.home).job
    assert job is not None
    return job, result


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_recipe_has_a_name_of_its_own(lang: str) -> None:
    names = {entry["key"]: entry["name"] for entry in recipe_list(lang)}
    assert set(names) == set(recipes())
    assert len(set(names.values())) == len(names)


@pytest.mark.parametrize("key", list(recipes()))
def test_a_recipe_fills_in_the_plan_and_leaves_the_nodes(services: Services, key: str) -> None:
    services.draft.edit_all({"model.path": "/old", "training.method": "lora", "parallel.pipeline": 3})
    job, _ = job_after(services, {"kind": "recipe", "key": key})
    expected = recipes()[key]["job"]
    assert (job.engine, job.model.preset, job.model.path) == (expected["engine"], expected["model"]["preset"], None)
    assert job.cluster.nodes == expected["cluster"]["nodes"]
    assert [host.address for host in job.cluster.hosts] == ["10.0.0.1", "10.0.0.2"]
    assert job.parallel.pipeline == expected["parallel"].get("pipeline", 1)


DEMO = {
    "version": 1,
    "name": "demo",
    "cluster": {"gpu": "cpu", "nodes": 2, "gpus_per_node": 1, "hosts": [{"address": "127.0.0.1", "port": 20001}] * 2},
    "model": {"preset": "qwen3-0.6b", "path": "/home/demo/model"},
    "training": {"dataset": "demo", "output_dir": "/home/demo/output"},
    "engine": "llamafactory-ddp",
}


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_demo_s_job_is_the_first_recipe_and_only_where_the_server_is_a_demo(lang: str) -> None:
    names = [entry["name"] for entry in recipe_list(lang, DEMO)]
    assert "2" in names[0]
    assert names[1:] == [entry["name"] for entry in recipe_list(lang)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("other", list(recipes()))
def test_the_demo_s_job_can_be_chosen_again_whole_after_any_recipe(tmp_path: Path, other: str) -> None:
    services = Services.open(tmp_path, demo=DEMO)
    try:
        services.draft.replace(DEMO)
        expected = read(services.draft.job_mapping(), services.home).job
        job, _ = job_after(services, {"kind": "recipe", "key": other})
        assert job.training.output_dir is None
        job, result = job_after(services, {"kind": "recipe", "key": "demo"})
    finally:
        services.close()
    assert job == expected
    assert result.note == {"key": "demo"}


def test_a_server_that_is_no_demo_does_not_know_the_demo_s_recipe(services: Services) -> None:
    result = fetch(services, {"kind": "recipe", "key": "demo"})
    assert [problem.code for problem in result.problems] == ["unknown_recipe"]


def test_a_yaml_runs_on_the_draft_s_machines_and_reports_its_keys(services: Services) -> None:
    services.draft.edit_all({"cluster.gpu": "a100-80g", "cluster.nodes": 2})
    job, result = job_after(services, {"kind": "import", "text": YAML})
    assert (job.cluster.gpu, job.cluster.nodes, job.training.cutoff_len) == ("a100-80g", 2, 1024)
    assert (job.model.preset, job.engine) == ("qwen3-8b", "llamafactory-ddp")
    assert result.note["all"] == 5
    assert {line.key for line in result.lines} >= {"model_name_or_path", "cutoff_len"}


def test_a_job_file_is_taken_whole(services: Services) -> None:
    text = "version: 1\nname: mine\ncluster: {gpu: h20-96g, nodes: 1, gpus_per_node: 8}\nmodel: {preset: qwen3-8b}\n"
    job, result = job_after(services, {"kind": "import", "text": text})
    assert (job.name, job.cluster.gpu, job.cluster.hosts, result.lines) == ("mine", "h20-96g", (), ())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "not_a_mapping"),
        ("a: [", "not_yaml"),
        (YAML.replace("stage: sft", "stage: ppo"), "import_stage"),
        ("version: 2\n", "missing_key"),
    ],
)
def test_what_cannot_be_imported_changes_nothing_and_is_reported(services: Services, text: str, code: str) -> None:
    before = services.draft.job_mapping()
    result = fetch(services, {"kind": "import", "text": text})
    assert code in {problem.code for problem in result.problems}
    assert result.edits == {}
    assert services.draft.job_mapping() == before


def test_a_recipe_that_is_not_there_is_reported(services: Services) -> None:
    assert [problem.code for problem in fetch(services, {"kind": "recipe", "key": "x"}).problems] == ["unknown_recipe"]
