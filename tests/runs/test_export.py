"""The kind of a run's saved files decides about its export. An impossible export is refused before anything starts."""

import pytest

from backend.cluster.node import NodeError
from backend.job.job import Job
from backend.job.mapping import parse_job
from backend.job.problems import ProblemsError
from backend.runs.tasks.export import SavedModel, export, find_source, serve_commands, target_of
from tests.fakes import FakeNode

RESULTS = "/runs/run-1"


def job_of(engine: str = "llamafactory-ddp") -> Job:
    job, problems = parse_job(
        {
            "name": "mine",
            "cluster": {
                "gpu": "h100-80g", "nodes": 1, "gpus_per_node": 8, "hosts": [{"address": "10.0.0.1"}],
                "environments": {"llamafactory": {"python": "/lf/bin/python"}},
            },
            "model": {"preset": "qwen3-8b", "path": "/m"},
            "engine": engine,
            "training": {"output_dir": "/runs", "template": "qwen3"},
        }
    )  # fmt: skip
    assert job is not None, problems
    return job


def node_with(*names: str) -> FakeNode:
    node = FakeNode()
    node.files = {f"{RESULTS}/{name}": b"" for name in names}
    return node


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("adapter_config.json", "adapter_model.safetensors"), "merge"),
        (("config.json", "model.safetensors"), "ready"),
        (("config.json", "model.safetensors.index.json", "mca_config.json"), "ready"),
        (("mca_config.json", "config.json"), "megatron"),
    ],
)
def test_results_are_distinguished_by_their_files(names: tuple[str, ...], kind: str) -> None:
    source = find_source(job_of(), RESULTS, node_with(*names))
    assert source is not None
    assert (source.kind, source.folder) == (kind, RESULTS)


def test_a_folder_without_a_model_is_none() -> None:
    assert find_source(job_of(), RESULTS, node_with("trainer_log.jsonl")) is None


@pytest.mark.parametrize("engine", ["swift-ddp", "swift-megatron"])
def test_adapters_of_ms_swift_are_merged_by_it(engine: str) -> None:
    source = find_source(job_of(engine), RESULTS, node_with("adapter_config.json"))
    assert source is not None
    assert (source.kind, source.folder) == ("merge_swift", RESULTS)


def test_the_whole_model_beside_adapters_of_ms_swift_s_megatron_is_ready() -> None:
    node = node_with("latest_checkpointed_iteration.txt")
    node.files[f"{RESULTS}-merged/model.safetensors.index.json"] = b""
    source = find_source(job_of("swift-megatron"), RESULTS, node)
    assert source is not None
    assert (source.kind, source.folder) == ("ready", f"{RESULTS}-merged")


def test_ms_swift_s_own_format_is_refused_with_its_command() -> None:
    with pytest.raises(NodeError) as raised:
        find_source(job_of("swift-megatron"), RESULTS, node_with("latest_checkpointed_iteration.txt"))
    values = raised.value.problem.values
    assert (raised.value.code, values["folder"], values["kind"]) == ("export_by_swift", RESULTS, "mcore_model")


def test_what_is_a_model_already_stays_and_nothing_is_asked_of_the_node() -> None:
    node = FakeNode()
    calls = export(job_of(), "run-1", SavedModel(folder=RESULTS, kind="ready"), "/x", node, lambda line: None)
    assert (calls.folder, calls.kind, node.ran) == (RESULTS, "ready", [])


def test_nothing_is_written_over_what_is_there() -> None:
    node = FakeNode()
    node.folders.add("/x")
    with pytest.raises(ProblemsError) as raised:
        export(job_of(), "run-1", SavedModel(folder=RESULTS, kind="merge"), "/x", node, lambda line: None)
    assert [problem.code for problem in raised.value.problems] == ["export_exists"]
    assert node.ran == []


def test_two_commands_serve_it_with_the_jobs_template() -> None:
    vllm, api = serve_commands(job_of(), "/x")
    assert vllm == "vllm serve /x --served-model-name mine --host 127.0.0.1 --port 8000"
    assert api.endswith("/lf/bin/python -m llamafactory.cli api --model_name_or_path /x --template qwen3")


def test_a_model_goes_beside_the_runs_and_a_checkpoints_says_its_step() -> None:
    assert target_of(job_of(), "run-1", None) == "/runs/exported/run-1"
    assert target_of(job_of(), "run-1", 200) == "/runs/exported/run-1-200"
