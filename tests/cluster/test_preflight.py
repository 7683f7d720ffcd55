"""Each check with possible answers of a node, through the same function as a launch."""

import json
from typing import Any, get_args

import pytest

from app.text import LANGUAGES, render_problem
from backend.cluster.node import NodeError, Result
from backend.cluster.preflight.files import loss_growth
from backend.cluster.preflight.lock import lock_path
from backend.cluster.preflight.master_port import choose_port
from backend.cluster.preflight.registry import CHECKS
from backend.cluster.preflight.results import CheckName
from backend.job.cluster import Host
from backend.job.mapping import with_values
from backend.job.rules.grpo import solution_columns
from tests.cluster.gang import H100, MODULES, PATHS, PORT, PYTHON, Gang, good_node, hardware_answer, make_facts, smi
from tests.cluster.jobs import make_job
from tests.fakes import FakeNode


@pytest.fixture
def gang() -> Gang:
    return Gang()


def test_a_good_gang_passes_every_check(gang: Gang) -> None:
    results = gang.check()
    assert {result.status for result in results} == {"ok"}
    names = [{result.name for result in results if result.rank == rank} for rank in (0, 1)]
    # Rank 0 alone writes this engine's checkpoints.
    assert names[0] - names[1] == {"space"}
    assert len(results) == len(names[0]) + len(names[1])


@pytest.mark.parametrize(("engine", "ranks"), [("ddp", {0}), ("fsdp", {0}), ("zero2", {0, 1}), ("megatron", {0, 1})])
def test_room_is_asked_of_the_nodes_that_write_checkpoints(gang: Gang, engine: str, ranks: set[int]) -> None:
    gang.job = with_values(gang.job, {"engine": f"llamafactory-{engine}"})
    assert {result.rank for result in gang.check() if result.name == "space"} == ranks


def test_a_node_with_smaller_gpus_than_the_plan_counts_with_is_named(gang: Gang) -> None:
    gang.job = with_values(gang.job, {"cluster.gpu": "h100-80g"})
    gang.second.on("hardware", reply=hardware_answer(smi=smi(H100.replace("81559", "40960"))))
    results_ = {result.rank: result for result in gang.check() if result.name == "gpu_memory"}
    assert [results_[rank].status for rank in (0, 1)] == ["ok", "warning"]
    problem = results_[1].problem
    assert problem
    assert problem.field == "cluster.hosts[1].gpu_memory_gib"
    for lang in LANGUAGES:
        words = render_problem(lang, problem)
        assert all(word in words["message"] for word in ("10.0.0.2", "39.4", "79.1"))
        assert "`gpu_memory_gib: 40`" in words["fix"]


def test_a_node_that_is_not_reached_fails_the_log_in_and_skips_the_rest(gang: Gang) -> None:
    gang.nodes[1] = NodeError("unreachable", "10.0.0.2", address="10.0.0.2", port=22, detail="refused")
    del gang.facts[1]
    failure, problem = gang.only_failure()
    assert (failure.name, failure.rank) == ("login", 1)
    assert problem.field == "cluster.hosts[1].address"
    assert {r.status for r in gang.check() if r.rank == 1 and r.name != "login"} == {"skipped"}


def test_a_node_without_the_python_is_named(gang: Gang) -> None:
    field = "cluster.environments.llamafactory.python"
    gang.facts[1] = NodeError("no_python", "10.0.0.2", field=field, python="/opt/lf/bin/python", detail="none")
    failure, problem = gang.only_failure()
    assert (failure.name, failure.rank, problem.field) == ("python", 1, field)


def test_an_environment_without_the_engine_is_named(gang: Gang) -> None:
    gang.facts[1] = make_facts({**MODULES, "llamafactory": None})
    failure, problem = gang.only_failure()
    assert failure.name == "engine"
    assert problem.values["modules"] == ["llamafactory"]


def test_packages_that_an_evaluation_of_held_out_rows_lacks_are_a_note_and_prevent_nothing(gang: Gang) -> None:
    assert not [result for result in gang.check() if result.name == "metrics"]
    gang.job = with_values(gang.job, {"training.eval_size": 0.1})
    gang.facts[0] = make_facts(metrics={"jieba": "0.42.1", "nltk": None, "rouge_chinese": None})
    [lacking] = [result for result in gang.check() if result.name == "metrics"]
    assert lacking.problem is not None
    assert (lacking.status, lacking.rank, lacking.problem.severity) == ("skipped", 0, "note")
    assert str(lacking.problem.values["command"]).endswith("-m pip install nltk rouge-chinese")
    for lang in LANGUAGES:
        assert "rouge-chinese" in render_problem(lang, lacking.problem)["message"]
    gang.facts[0] = make_facts(metrics=dict.fromkeys(("jieba", "nltk", "rouge_chinese"), "1"))
    assert [result.status for result in gang.check() if result.name == "metrics"] == ["ok"]
    gang.job = with_values(gang.job, {"training.stage": "pt"})
    assert not [result for result in gang.check() if result.name == "metrics"]


def test_a_model_that_is_missing_on_one_node_only_is_named(gang: Gang) -> None:
    gang.second.on("paths", reply={**PATHS, "model": False})
    failure, problem = gang.only_failure()
    assert (failure.name, failure.node) == ("model", "10.0.0.2")
    assert (problem.field, problem.values["path"]) == ("model.path", "/models/qwen")


@pytest.mark.parametrize(
    ("dataset", "code", "field"),
    [
        ({"info": False}, "dataset_info_missing", "training.dataset_dir"),
        ({"unknown": ["b"]}, "dataset_unknown", "training.dataset"),
        ({"missing": ["/data/b.json"]}, "dataset_file_missing", "training.dataset"),
    ],
)
def test_a_data_set_that_is_not_there_is_named(gang: Gang, dataset: dict[str, Any], code: str, field: str) -> None:
    gang.first.on("paths", reply={**PATHS, "dataset": {**PATHS["dataset"], **dataset}})
    failure, problem = gang.only_failure()
    assert (failure.name, problem.code, problem.field) == ("dataset", code, field)


def test_a_column_that_the_first_rows_lack_is_a_warning(gang: Gang) -> None:
    dataset = {**PATHS["dataset"], "columns": {"mine": ["instruction", "output"]}}
    gang.first.on("paths", reply={**PATHS, "dataset": dataset})
    [warning] = [result for result in gang.check() if result.status != "ok"]
    assert (warning.name, warning.status, warning.rank) == ("dataset", "warning", 0)
    assert warning.problem is not None
    assert (warning.problem.code, warning.problem.field) == ("dataset_columns_missing", "training.dataset")
    assert warning.problem.values["columns"] == "mine: instruction, output"


@pytest.mark.parametrize(
    ("stage", "marks", "code"),
    [
        ("rm", {"ranking": []}, "dataset_without_pairs"),
        ("dpo", {"ranking": []}, "dataset_without_pairs"),
        ("kto", {"ranking": ["mine"]}, "dataset_of_pairs"),
        ("kto", {"ranking": [], "judged": []}, "dataset_without_kto_tag"),
        ("sft", {"ranking": ["mine"]}, "dataset_of_pairs"),
    ],
)
def test_data_of_another_kind_than_the_stage_needs_are_refused(
    gang: Gang, stage: str, marks: dict[str, list[str]], code: str
) -> None:
    gang.job = with_values(gang.job, {"training.stage": stage, "training.dataset": "mine"})
    gang.first.on("paths", reply={**PATHS, "dataset": {**PATHS["dataset"], **marks}})
    [wrong] = [result for result in gang.check() if result.name == "dataset" and result.rank == 0]
    assert wrong.problem is not None
    assert (wrong.status, wrong.problem.code, wrong.problem.field) == ("failure", code, "training.dataset")
    assert wrong.problem.values["names"] == ["mine"]


@pytest.mark.parametrize(
    ("grpo", "extra", "asked", "status"),
    [
        ({"rewards": "accuracy,format"}, {}, ["solution"], "failure"),
        ({"rewards": "cosine"}, {"columns": {"answer": "solution"}}, ["answer", "solution"], "failure"),
        ({"rewards": "toolbench"}, {"columns": '{"answer": "solution"}'}, ["answer", "solution"], "failure"),
        ({"rewards": "accuracy", "plugin": "/shared/rewards.py"}, {}, ["solution"], "warning"),
        ({"rewards": "format,repetition"}, {}, [], None),
    ],
)
def test_rows_without_the_answer_that_a_reward_reads_are_named_before_the_launch(
    grpo: dict[str, Any], extra: dict[str, Any], asked: list[str], status: str | None
) -> None:
    swift = {"environments": {"swift": {"python": "/opt/swift/bin/python"}}}
    training = {"stage": "grpo", "grpo": grpo, "dataset": "a.jsonl"}
    gang = Gang(engine="swift-ddp", cluster=swift, training=training, extra=extra)
    modules = {"swift": "4.6.0", "datasets": "4.8.4", "trl": "0.29.1", "msgspec": "0.22.0", "math_verify": "0.9.0"}
    gang.facts = {rank: make_facts({**MODULES, **modules}) for rank in (0, 1)}
    dataset = {"info": False, "unknown": [], "missing": [], "columns": {}}
    gang.first.on("paths", reply={**PATHS, "dataset": dataset})
    lacking = {**dataset, "unanswered": {"/data/a.jsonl": 3} if asked else {}}
    gang.second.on("paths", reply={**PATHS, "dataset": lacking})
    assert solution_columns(gang.job) == asked
    if status is None:
        assert {result.status for result in gang.check()} == {"ok"}
        return
    failure, problem = gang.only(status)
    assert (failure.name, failure.rank) == ("dataset", 1)
    assert (problem.code, problem.field) == ("grpo_solution_missing", "training.dataset")
    assert problem.values["rows"] == "/data/a.jsonl: 3"
    assert problem.values["rewards"] == grpo["rewards"].partition(",")[0]


CODE = "modeling_mine.MineForCausalLM"
ALLOWED = {"trust_remote_code": True}


@pytest.mark.parametrize(
    ("values", "factor"),
    [
        ({"extra": ALLOWED, "training.gradient_accumulation_steps": 4}, 8),
        ({"extra": {**ALLOWED, "average_tokens_across_devices": False}, "training.gradient_accumulation_steps": 4}, 4),
        ({"extra": ALLOWED, "training.stage": "pt", "training.gradient_accumulation_steps": 1}, 2),
        ({"extra": {**ALLOWED, "average_tokens_across_devices": False}, "training.gradient_accumulation_steps": 1}, 1),
        ({"extra": {}}, 1),
        ({"extra": {**ALLOWED, "use_dft_loss": True}}, 1),
        ({"extra": ALLOWED, "training.stage": "dpo"}, 1),
        ({"extra": ALLOWED, "engine": "llamafactory-megatron"}, 1),
        ({"extra": ALLOWED, "engine": "swift-ddp"}, 1),
    ],
)
def test_the_loss_of_own_code_grows_with_ranks_and_accumulation_where_the_trainer_expects_a_sum(
    gang: Gang, values: dict[str, Any], factor: int
) -> None:
    assert gang.job.data_parallel == 2
    assert loss_growth(with_values(gang.job, values)) == factor


def test_own_code_whose_loss_the_trainer_does_not_divide_is_a_warning_with_its_class_and_the_factor(gang: Gang) -> None:
    gang.job = with_values(gang.job, {"extra": ALLOWED, "training.gradient_accumulation_steps": 4})
    gang.second.on("paths", reply={**PATHS, "undivided": CODE})
    [warning] = [result for result in gang.check() if result.status != "ok"]
    assert (warning.name, warning.rank, warning.status) == ("model", 1, "warning")
    assert warning.problem is not None
    assert (warning.problem.code, warning.problem.field) == ("loss_not_divided", "model.path")
    assert (warning.problem.values["model_class"], warning.problem.values["factor"]) == (CODE, 8)


def test_lora_targets_that_no_module_has_are_a_warning_at_their_field(gang: Gang) -> None:
    gang.job = with_values(gang.job, {"training.method": "lora", "training.lora.targets": "c_attn,q_proj"})
    gang.first.on("paths", reply={**PATHS, "unmatched": ["c_attn"]})
    [warning] = [result for result in gang.check() if result.status != "ok"]
    assert warning.problem is not None
    assert (warning.problem.code, warning.problem.field) == ("lora_targets_unmatched", "training.lora.targets")


@pytest.mark.parametrize(
    ("environment", "secrets", "status"),
    [
        ({}, frozenset(), "warning"),
        ({"WANDB_MODE": "offline"}, frozenset(), "ok"),
        ({}, frozenset({"WANDB_API_KEY"}), "ok"),
        ({"WANDB_PROJECT": "mine"}, frozenset({"HF_TOKEN"}), "warning"),
    ],
)
def test_the_node_that_reports_to_wandb_needs_a_log_in(
    gang: Gang, environment: dict[str, str], secrets: frozenset[str], status: str
) -> None:
    gang.job = with_values(gang.job, {"training.report_to": ("wandb",), "environment": environment})
    gang.secret_names = secrets
    for node in (gang.first, gang.second):
        node.on("paths", reply={**PATHS, "wandb": False})
    [result] = [result for result in gang.check() if result.name == "tracker"]
    assert (result.rank, result.status) == (0, status)
    gang.first.on("paths", reply={**PATHS, "wandb": True})
    assert all(result.status == "ok" for result in gang.check())


def test_megatron_reports_to_wandb_from_the_last_node(gang: Gang) -> None:
    swift = {"engine": "swift-megatron", "cluster.environments": {"swift": PYTHON}}
    gang.job = with_values(gang.job, {**swift, "training.report_to": ("wandb",)})
    gang.second.on("paths", reply={**PATHS, "wandb": False})
    assert [(r.rank, r.status) for r in gang.check() if r.name == "tracker"] == [(1, "warning")]


def test_ms_swift_reads_plain_files_and_needs_no_description_of_them(gang: Gang) -> None:
    gang.first.on("paths", reply={**PATHS, "dataset": {"info": False, "unknown": [], "missing": [], "columns": {}}})
    gang.job = with_values(gang.job, {"engine": "swift-megatron", "cluster.environments": {"swift": PYTHON}})
    assert {result.status for result in gang.check()} == {"ok"}
    missing = {"info": False, "unknown": [], "missing": ["/data/a.jsonl"], "columns": {}}
    gang.first.on("paths", reply={**PATHS, "dataset": missing})
    assert gang.only_failure()[1].code == "dataset_file_missing"


@pytest.mark.parametrize(
    ("path", "name", "field"),
    [
        ("~/.megaboard", "run_root", "cluster.run_root"),
        ("~/.megaboard/locks", "run_root", "cluster.run_root"),  # It belongs to another user of the run root.
        ("/out", "output_dir", "training.output_dir"),
    ],
)
def test_a_folder_that_cannot_be_written_is_named(gang: Gang, path: str, name: str, field: str) -> None:
    gang.first.on("paths", reply={**PATHS, "not_writable": {path: "Permission denied"}})
    failure, problem = gang.only_failure()
    assert (failure.name, problem.field, problem.values["path"]) == (name, field, path)
    assert problem.values["detail"] == "Permission denied"
    request = next(argv for argv in gang.first.ran if "paths" in argv)
    assert path in json.loads(request[request.index("paths") + 1])["writable"]


def test_a_run_root_of_another_user_is_warned_of(gang: Gang) -> None:
    """He could replace the supervisor's program between its upload and its start."""
    gang.first.on("paths", reply={**PATHS, "foreign": {"~/.megaboard": "mallory", "/out": "mallory"}})
    result, problem = gang.only_warning()
    assert (result.name, problem.code, problem.values["owner"]) == ("run_root", "run_root_of_other", "mallory")


def test_the_node_with_other_versions_than_most_is_the_odd_one() -> None:
    gang = Gang()
    gang.job = make_job(nodes=3)
    gang.nodes[2] = good_node("10.0.0.3")
    gang.facts[2] = make_facts()
    gang.facts[0] = make_facts({**MODULES, "torch": "2.10.0"})
    failure, problem = gang.only_failure()
    assert (failure.name, failure.rank) == ("versions", 0)
    assert (problem.values["here"], problem.values["others"]) == ("torch 2.10.0", "torch 2.11.0")


def test_a_node_that_another_run_holds_is_named(gang: Gang) -> None:
    gang.second.on("holder", reply={"holder": {"run": "20261121-other"}})
    failure, problem = gang.only_failure()
    assert (failure.name, problem.code, problem.values["run"]) == (
        "lock",
        "node_locked",
        "20261121-other",
    )
    assert any("/home/train/.megaboard/locks/10.0.0.2" in argv for argv in gang.second.ran)


def test_a_port_that_is_taken_on_the_master_is_named_once(gang: Gang) -> None:
    gang.first.on("listen", reply={"bound": False, "detail": "Address already in use"})
    for node in (gang.first, gang.second):
        node.on("dial", reply={"reached": False, "detail": "another program answers"})
    failure, problem = gang.only_failure()
    assert (failure.rank, problem.code, problem.field) == (0, "port_taken", "cluster.port_range")


def test_a_node_that_cannot_dial_the_master_is_named(gang: Gang) -> None:
    gang.second.on("dial", reply={"reached": False, "detail": "timed out"})
    failure, problem = gang.only_failure()
    assert (failure.rank, problem.code) == (1, "master_not_reached")
    assert (problem.values["address"], problem.values["port"]) == ("10.0.0.1", PORT)


def test_the_registry_has_every_result_once_but_those_of_slurm() -> None:
    names = [name for check in CHECKS for name in check.names]
    assert sorted(["cordon", "login", "python", *names, "scheduler", "time_limit"]) == sorted(get_args(CheckName))


@pytest.mark.parametrize("gpu", ["h100-80g", "cpu"])
def test_a_node_whose_hardware_is_not_read_fails_once(gang: Gang, gpu: str) -> None:
    gang.job = with_values(gang.job, {"cluster.gpu": gpu})
    gang.second.on("hardware", reply=Result(code=1, out="", err="MemoryError"))
    failure, problem = gang.only_failure()
    assert (failure.name, problem.code) == ("gpus", "bad_answer")


def test_a_check_that_breaks_is_a_failure_of_that_check(gang: Gang) -> None:
    gang.second.on("paths", reply=Result(code=1, out="", err="MemoryError"))
    failure, problem = gang.only_failure()
    assert (failure.name, problem.code) == ("model", "bad_answer")


def test_a_free_port_is_asked_from_the_master() -> None:
    node = FakeNode().on("free_port", reply={"port": 29501})
    assert choose_port(make_job(), node, [29500, 29501]) == 29501
    node.on("free_port", reply={"port": None})
    with pytest.raises(NodeError) as caught:
        choose_port(make_job(), node, [29500])
    assert caught.value.problem.field == "cluster.port_range"


def test_locks_are_distinguished_by_what_the_others_dial() -> None:
    assert lock_path("/r", Host(address="login.example", fabric_address="10.0.0.1")) == "/r/locks/10.0.0.1"
    assert lock_path("/r", Host(address="127.0.0.1", port=2223)) == "/r/locks/127.0.0.1_2223"
    assert lock_path("/r", Host(address="fd00::1")) == "/r/locks/fd00__1"
