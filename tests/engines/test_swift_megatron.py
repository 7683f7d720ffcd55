"""ms-swift's Megatron: its arguments express the job, and its own argument classes accept them."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.engines import ENGINES, Rendered, export, render
from backend.engines.engine import target_of
from backend.engines.known_keys import EngineKey, keys_of, programs
from backend.job.cluster import Environment
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.megatron_model_types import SWIFT_MODEL_TYPES
from backend.job.presets import models
from backend.job.rules import check
from tests.engines.jobs import job, place
from tools.programs import SWIFT, swift_python
from tools.write_engine_keys import run_swift


def swift(preset: str = "qwen3-8b", **values: Any) -> Job:
    the_job = job(preset, training__dataset="a.jsonl, b.jsonl", **values)
    environments = {"swift": Environment(python="/opt/swift/bin/python")}
    return with_values(the_job, {"engine": "swift-megatron", "cluster.environments": environments})


CASES: Mapping[str, Job] = {
    "dense": swift(parallel__tensor=2),
    "lora": swift(training__method="lora", training__lora__targets="linear_qkv,linear_proj", parallel__tensor=2),
    "mixed": swift(training__mix_strategy="interleave_over", training__interleave_probs="0.7,0.3"),
    "pretraining": swift(training__stage="pt", training__template=None, training__max_steps=10, training__packing=True),
    "preference": swift(training__stage="dpo", training__dpo__loss="ipo"),
    "kto": swift(training__stage="kto", training__dpo__beta=0.2, training__method="lora"),
    "reward model": swift(training__stage="rm", parallel__tensor=2),
    "pipeline": swift(
        parallel__pipeline=2, parallel__virtual_pipeline=2, parallel__recompute="full", parallel__recompute_num_layers=2
    ),
    "experts": swift(
        "qwen3-30b-a3b",
        parallel__expert=4,
        parallel__tensor=2,
        parallel__recompute="selective",
        parallel__recompute_modules=("core_attn", "moe_act"),
    ),
    "vision": swift("qwen3-vl-8b", parallel__tensor=4, training__freeze__vision_tower=True),
    "switches": swift(
        training__template="qwen3_nothink",
        training__lr_scheduler="cosine_with_min_lr",
        training__save_total_limit=1,
        training__num_train_epochs=1.5,
        training__report_to=("wandb", "mlflow"),
        training__eval_steps=20,
        parallel__optimizer_offload_fraction=0.5,
        extra={"split_dataset_ratio": 0.01, "attention_backend": "auto"},
    ),
}


ARCHITECTURES = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
}
"""Hugging Face model type -> the architecture that its config.json names."""


def config_of(the_job: Job) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(render(the_job, place(the_job)).files["config.yaml"])
    return config


@pytest.mark.parametrize("the_job", CASES.values(), ids=CASES)
def test_ms_swift_knows_every_key_and_no_value_is_null(the_job: Job) -> None:
    config = config_of(the_job)
    assert config.keys() <= keys_of("swift-megatron").keys()
    assert None not in config.values()


@pytest.mark.parametrize("the_job", CASES.values(), ids=CASES)
def test_every_key_names_the_job_path_that_decides_it(the_job: Job) -> None:
    engine = ENGINES["swift-megatron"]
    assert engine.config(target_of(the_job), "/runs/it").keys() <= engine.owned.keys()


def test_lora_and_freezing_are_written_in_its_words() -> None:
    lora, vision = config_of(CASES["lora"]), config_of(CASES["vision"])
    assert (lora["tuner_type"], lora["target_modules"]) == ("lora", ["linear_qkv", "linear_proj"])
    assert (vision["freeze_vit"], vision["freeze_aligner"], vision["freeze_llm"]) == (True, False, False)
    assert "freeze_vit" not in lora


def test_fp32_is_said_in_all_its_keys_because_it_would_train_fp16() -> None:
    config = config_of(swift(training__precision="fp32"))
    assert (config["torch_dtype"], config["bf16"], config["fp16"]) == ("float32", False, False)


def test_the_kind_of_rlhf_and_its_own_keys_are_written() -> None:
    kinds = {case: config_of(CASES[case]) for case in ("preference", "kto", "reward model")}
    assert {case: config["rlhf_type"] for case, config in kinds.items()} == {
        "preference": "dpo", "kto": "kto", "reward model": "rm",
    }  # fmt: skip
    assert [("beta" in config, "loss_type" in config) for config in kinds.values()] == [
        (True, True), (True, False), (False, False),
    ]  # fmt: skip


def test_the_data_are_files_below_the_folder_and_the_global_batch_is_whole() -> None:
    config = config_of(CASES["dense"])
    assert config["dataset"] == ["/data/a.jsonl", "/data/b.jsonl"]
    assert config["global_batch_size"] == CASES["dense"].global_batch == 32


def test_shares_of_data_sets_are_numbers_and_say_when_the_mixture_ends() -> None:
    config = config_of(CASES["mixed"])
    assert (config["interleave_prob"], config["stopping_strategy"]) == ([0.7, 0.3], "all_exhausted")
    assert not {"interleave_prob", "stopping_strategy"} & config_of(CASES["dense"]).keys()


@pytest.mark.parametrize(
    ("case", "key"), [("dense", "mcore_model"), ("lora", "mcore_adapter"), ("preference", "mcore_model")]
)
def test_an_attempt_that_resumes_loads_the_whole_state_of_the_checkpoint(case: str, key: str) -> None:
    created = CASES[case]
    resumed = render(created, replace(place(created), checkpoint="/runs/it/checkpoint-40"))
    config = yaml.safe_load(resumed.files["config.yaml"])
    assert config == config_of(created) | {key: "/runs/it/checkpoint-40", "finetune": False}
    assert config["model"] == "/models/it"
    assert config.keys() <= keys_of("swift-megatron").keys()


def test_what_it_means_differently_is_noted() -> None:
    switches = CASES["switches"]
    notes = {note.code for note in render(switches, place(switches)).notes}
    assert notes == {"swift_template", "swift_whole_epochs", "swift_keeps_two", "swift_reports"}
    assert config_of(switches)["save_total_limit"] == 2


def test_losses_and_warnings_are_its_own() -> None:
    problems = {problem.code: problem for problem in check(swift(training__stage="dpo", training__dpo__loss="orpo"))}
    refused = problems["preference_loss_not_supported"]
    assert (refused.values["engine"], refused.values["losses"]) == ("swift-megatron", "sigmoid, hinge, ipo")
    assert "no_shuffling" not in {problem.code for problem in check(CASES["dense"])}


def test_the_rank_is_told_which_command_to_run_and_the_plain_script_starts_ms_swift_s_own() -> None:
    commands = {"dense": "sft", "pretraining": "pt", "preference": "rlhf", "kto": "rlhf", "reward model": "rlhf"}
    for case, command in commands.items():
        variables = render(CASES[case], place(CASES[case])).commands[0].environment
        assert variables["MEGABOARD_TRAINER"] == f"swift-{command}"
        script = export(CASES[case])["node0.sh"]
        assert f"-m swift.cli._megatron.main {command} config.yaml" in script
        assert "MEGABOARD_" not in script


@pytest.fixture(scope="module")
def python() -> str:
    result = swift_python()
    if not result:
        pytest.skip(f"no ms-swift here: `make engines` installs it, or {SWIFT} names a Python that has it")
    return result


@pytest.mark.e2e
@pytest.mark.engines
@pytest.mark.parametrize("case", CASES)
def test_its_own_argument_classes_take_the_rendered_file(case: str, python: str, tmp_path: Path) -> None:
    path = on_disk(CASES[case], tmp_path)
    assert refusal_of(python, render(path, place(path))) == (None, "")


@pytest.mark.e2e
@pytest.mark.engines
@pytest.mark.parametrize("case", ["dense", "lora", "preference"])
def test_its_own_argument_classes_take_what_resumes(case: str, python: str, tmp_path: Path) -> None:
    path = on_disk(CASES[case], tmp_path)
    checkpoint = tmp_path / "checkpoint-40"
    checkpoint.mkdir()
    assert refusal_of(python, render(path, replace(place(path), checkpoint=str(checkpoint)))) == (None, "")


def on_disk(the_job: Job, folder: Path) -> Job:
    """Return the job with its model and data in a folder that has all files that ms-swift reads before it trains."""
    config = dict(models()[the_job.model.preset or ""].hf_config)
    config["architectures"] = [ARCHITECTURES[config["model_type"]]]
    # No name that ms-swift knows: the file says the model type and the template.
    model = folder / "weights"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).touch()
    return with_values(the_job, {"model.path": str(model), "training.dataset_dir": str(folder)})


def refusal_of(python: str, rendered: Rendered) -> tuple[str | None, str]:
    """Return ms-swift's error and its text; None and an empty text if it accepts the files."""
    answer = run_swift(python, "parse", environment=dict(rendered.commands[0].environment), files=dict(rendered.files))
    return answer["error"], answer["message"]


REGISTERED = """
import ast, importlib.util, json, pathlib
folder = pathlib.Path(importlib.util.find_spec("mcore_bridge").submodule_search_locations[0]) / "model"
calls = [node for file in folder.glob("*gpts/*.py") for node in ast.walk(ast.parse(file.read_text()))
         if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ModelMeta"]
print(json.dumps([name for call in calls for name in ast.literal_eval(call.args[1])]))
"""
"""Prints the model types of every ModelMeta in mcore-bridge's source files. Its import needs Transformer Engine."""


@pytest.mark.e2e
@pytest.mark.engines
def test_the_kept_list_of_model_types_is_what_mcore_bridge_registers(python: str) -> None:
    command = [python, "-W", "ignore", "-c", REGISTERED]
    process = subprocess.run(command, capture_output=True, check=True, cwd="/")
    assert set(json.loads(process.stdout)) == SWIFT_MODEL_TYPES


@pytest.mark.e2e
@pytest.mark.engines
def test_it_refuses_a_model_type_that_the_rule_refuses(python: str, tmp_path: Path) -> None:
    model = tmp_path / "Mixtral-8x7B-Instruct-v0.1"
    model.mkdir()
    config = {**models()["mixtral-8x7b"].hf_config, "architectures": ["MixtralForCausalLM"]}
    (model / "config.json").write_text(json.dumps(config))
    accepted = on_disk(CASES["dense"], tmp_path)
    rendered = render(accepted, place(accepted))
    changed = yaml.safe_load(rendered.files["config.yaml"]) | {"model": str(model), "model_type": "mixtral"}
    files = {**rendered.files, "config.yaml": yaml.safe_dump(changed)}
    error, message = refusal_of(python, replace(rendered, files=files))
    assert error == "ValueError"
    assert "is not supported" in message


@pytest.mark.e2e
@pytest.mark.engines
def test_the_kept_list_of_keys_is_what_ms_swift_says(python: str) -> None:
    values = run_swift(python, "keys")["swift"]
    said = {name: EngineKey(type=key["type"], default=key["default"], choices=tuple(key.get("choices", ())))
            for name, key in values["keys"].items()}  # fmt: skip
    assert (values["version"], said) == (programs()["swift"].version, dict(programs()["swift"].keys))
