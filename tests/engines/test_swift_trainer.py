"""ms-swift's Hugging Face trainers: their arguments express the job, and its own argument classes accept them."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from backend.engines import ENGINES, check_all, export, render
from backend.engines.engine import target_of
from backend.engines.known_keys import EngineKey, keys_of, programs
from backend.engines.swift_models import SwiftModel, swift_model
from backend.job.cluster import Environment
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.presets import models
from backend.job.problems import errors
from backend.job.rules.swift_rlhf_keys import RLHF_KEYS
from backend.job.traits import TRAITS
from tests.engines.jobs import job, place
from tests.engines.test_swift_megatron import on_disk
from tests.job.rule_cases.keys import PACKED_BY_NO_MS_SWIFT, REFUSED_BY_MS_SWIFT
from tools.programs import SWIFT, swift_python
from tools.real_parsers import parse_with_swift
from tools.write_engine_keys import run_swift
from tools.write_models import read_own_code
from tools.write_swift_models import ask_models, kept

TRAINERS = [name for name, traits in TRAITS.items() if traits.environment == "swift" and not traits.is_megatron]


def swift(engine: str = "swift-ddp", preset: str = "qwen3-8b", **values: Any) -> Job:
    the_job = job(preset, **{"training__dataset": "a.jsonl, b.jsonl", **values})
    environments = {"swift": Environment(python="/opt/swift/bin/python")}
    return with_values(the_job, {"engine": engine, "cluster.environments": environments})


LORA = {"training__method": "lora"}
PLUGIN = Path(__file__).parents[1] / "e2e" / "proof" / "reward_plugin.py"
GRPO = {"training__stage": "grpo", "training__grpo__rewards": "format"}
CASES: Mapping[str, Job] = {
    **{name: swift(name) for name in TRAINERS},
    "lora": swift(**LORA, training__lora__targets="q_proj,v_proj"),
    "qlora": swift(training__method="qlora"),
    "pretraining": swift("swift-zero3", training__stage="pt", training__max_steps=10, training__packing=True),
    "cached data": swift(training__dataset="a.jsonl, tokens/train/"),
    "dpo": swift("swift-zero2", training__stage="dpo", training__dpo__loss="ipo"),
    "orpo": swift(training__stage="dpo", training__dpo__loss="orpo"),
    "simpo": swift(training__stage="dpo", training__dpo__loss="simpo"),
    "kto": swift(training__stage="kto", training__dpo__beta=0.2, **LORA),
    "reward model": swift(training__stage="rm", **LORA),
    "grpo": swift("swift-zero3", **GRPO),
    "grpo of adapters": swift(
        **{**GRPO, **LORA, "training__grpo__rewards": "accuracy,digits,soft_overlong"},
        training__grpo__plugin=str(PLUGIN),
        training__grpo__rollout="vllm",
        training__grpo__group_size=4,
        training__grpo__beta=0.0,
        training__eval_steps=20,
        training__eval_size=0.01,
        training__micro_batch_size=4,
        extra={"reward_weights": [1.0, 0.5, 0.1], "soft_cache_length": 100, "num_generations_eval": 2},
    ),
    "grpo of qlora": swift("swift-zero2", **GRPO, training__method="qlora"),
    "vision": swift("swift-zero3", "qwen3-vl-8b", training__freeze__vision_tower=True),
    "offload to a disk": swift(
        "swift-zero3-offload",
        parallel__offload_device="nvme",
        parallel__offload_folder="/nvme",
        parallel__recompute="none",
    ),
    "fsdp": swift("swift-fsdp", parallel__fsdp__offload=True, parallel__fsdp__reshard_after_forward=False),
    "switches": swift(
        training__lr_scheduler="cosine_with_min_lr",
        training__save_total_limit=1,
        training__num_train_epochs=1.5,
        training__report_to=(),
        training__eval_steps=20,
        training__eval_size=0.01,
        training__liger=False,
        extra={"lora_dropout": 0.1, "template": "qwen3_thinking"},
    ),
}  # fmt: skip


def files_of(the_job: Job) -> Mapping[str, str]:
    return render(the_job, place(the_job)).files


def config_of(the_job: Job) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(files_of(the_job)["config.yaml"])
    return config


@pytest.mark.parametrize("the_job", CASES.values(), ids=CASES)
def test_no_rule_refuses_it_and_ms_swift_knows_every_key(the_job: Job) -> None:
    assert errors(check_all(the_job)) == []
    config = config_of(the_job)
    assert config.keys() <= keys_of(the_job.engine).keys()
    assert None not in config.values()


@pytest.mark.parametrize("the_job", CASES.values(), ids=CASES)
def test_every_key_names_the_job_path_that_decides_it(the_job: Job) -> None:
    engine = ENGINES[the_job.engine]
    assert engine.config(target_of(the_job), "/runs/it").keys() <= engine.owned.keys()


@pytest.mark.parametrize(
    ("engine", "method", "dtype"),
    [
        ("swift-ddp", "full", "float32"),
        ("swift-fsdp", "full", "float32"),
        ("swift-zero2", "full", "bfloat16"),
        ("swift-ddp", "lora", "bfloat16"),
    ],
)
def test_weights_that_the_optimizer_steps_are_fp32(engine: str, method: str, dtype: str) -> None:
    config = config_of(swift(engine, training__method=method))
    assert (config["torch_dtype"], config["bf16"], config["fp16"]) == (dtype, True, False)


def test_orpo_and_simpo_are_kinds_of_rlhf_and_have_no_other_loss() -> None:
    kinds = {case: config_of(CASES[case]) for case in ("dpo", "orpo", "simpo", "kto", "reward model")}
    assert [config["rlhf_type"] for config in kinds.values()] == ["dpo", "orpo", "simpo", "kto", "rm"]
    assert ["loss_type" in config for config in kinds.values()] == [True, False, False, False, False]


def test_grpo_names_its_rewards_and_what_generates_the_completions() -> None:
    plain, adapters = config_of(CASES["grpo"]), config_of(CASES["grpo of adapters"])
    assert (plain["rlhf_type"], plain["reward_funcs"], plain["num_generations"]) == ("grpo", ["format"], 8)
    assert (plain["max_completion_length"], plain["temperature"], plain["beta"]) == (512, 0.9, 0.04)
    assert plain["use_vllm"] is False
    assert plain.keys().isdisjoint({"vllm_mode", "sleep_level", "vllm_gpu_memory_utilization", "external_plugins"})
    assert adapters["reward_funcs"] == ["accuracy", "digits", "soft_overlong"]
    assert adapters["external_plugins"] == [str(PLUGIN)]
    vllm = ("use_vllm", "vllm_mode", "sleep_level", "vllm_gpu_memory_utilization")
    assert [adapters[key] for key in vllm] == [True, "colocate", 1, 0.5]


def test_grpo_counts_no_tokens_because_its_batches_have_no_input_that_transformers_knows() -> None:
    counts = {case: config_of(CASES[case])["include_num_input_tokens_seen"] for case in ("grpo", "dpo")}
    assert counts == {"grpo": False, "dpo": True}


def test_a_key_that_dpo_and_grpo_share_names_the_path_of_the_stage() -> None:
    fields = {
        stage: [problem.values["path"] for problem in check_all(swift(**values, extra={"beta": 0.5}))
                if problem.code == "extra_owned"]
        for stage, values in (("dpo", {"training__stage": "dpo"}), ("grpo", GRPO))
    }  # fmt: skip
    assert fields == {"dpo": ["training.dpo.beta"], "grpo": ["training.grpo.beta"]}


def test_a_folder_of_tokenised_data_is_a_cached_data_set() -> None:
    config = config_of(CASES["cached data"])
    assert (config["dataset"], config["cached_dataset"]) == (["/data/a.jsonl"], ["/data/tokens/train"])


def test_sharding_is_a_file_beside_the_configuration() -> None:
    assert json.loads(files_of(CASES["swift-zero2"])["deepspeed.json"])["zero_optimization"]["stage"] == 2
    options = json.loads(files_of(CASES["fsdp"])["fsdp.json"])
    assert (options["fsdp"], options["fsdp_config"]["reshard_after_forward"]) == ("full_shard auto_wrap offload", False)
    # Both kinds of checkpoints at once make it warn, and switch one off.
    assert (config_of(CASES["fsdp"])["gradient_checkpointing"], options["fsdp_config"]["activation_checkpointing"]) == (
        False, True,
    )  # fmt: skip
    assert config_of(CASES["offload to a disk"])["gradient_checkpointing"] is False


def test_the_rank_is_told_which_command_to_run_and_the_plain_script_starts_ms_swift_s_own() -> None:
    for case, command in {"swift-ddp": "sft", "pretraining": "pt", "dpo": "rlhf", "orpo": "rlhf"}.items():
        variables = render(CASES[case], place(CASES[case])).commands[0].environment
        assert variables["MEGABOARD_TRAINER"] == f"swift_trainer-{command}"
        script = export(CASES[case])["node0.sh"]
        assert f"-m swift.cli.main {command} config.yaml" in script
        assert "NPROC_PER_NODE=" in script
        assert "MEGABOARD_" not in script


def own_code(name: str, architecture: str, **keys: str) -> dict[str, Any]:
    """Return a job's model with code in its folder, as config.json gives it."""
    config = {**read_own_code()[name]["config"], "architectures": [architecture], **keys}
    return {"model__preset": None, "model__hf_config": config}


def test_an_attempt_that_resumes_names_the_checkpoint() -> None:
    created = CASES["lora"]
    resumed = render(created, replace(place(created), checkpoint="/runs/it/checkpoint-40"))
    config = yaml.safe_load(resumed.files["config.yaml"])
    assert config == config_of(created) | {"resume_from_checkpoint": "/runs/it/checkpoint-40"}


PADDLE = {"model_type": "paddleocr_vl", "architectures": ["PaddleOCRVLForConditionalGeneration"]}
OWN_CODE = {"auto_map": {"AutoConfig": "configuration_paddleocr_vl.PaddleOCRVLConfig"}}


@pytest.mark.parametrize(
    ("values", "model_type", "template"),
    [
        ({}, "qwen3", "qwen3"),
        ({"preset": "qwen3-vl-8b"}, "qwen3_vl", "qwen3_vl"),
        ({"preset": "llama-3.1-8b", "training__template": "default"}, "llama", "llama3_2"),
        ({"model__preset": None, "model__hf_config": {"model_type": "qwen3"}, "training__template": "qwen3_nothink"},
         "qwen3", "qwen3_nothinking"),
        ({"model__preset": None, "model__hf_config": {"model_type": "it", "architectures": ["Qwen3ForCausalLM"]}},
         "qwen3", "qwen3"),
        # Several of its types have this class.
        (own_code("MiniCPM-V-2.6", "MiniCPMV"), "minicpmv2_6", "minicpmv2_6"),
        (own_code("MiniCPM-V-4.5", "MiniCPMV"), "minicpmv4_5", "minicpmv4_5"),
        # One of two types with this class loads the folder's code, of which the other has none.
        *(({"model__preset": None, "model__hf_config": {**PADDLE, **code}}, kind, template)
          for code, kind, template in (({}, "paddleocr_vl", "paddle_ocr_1_5"), (OWN_CODE, "paddle_ocr", "paddle_ocr"))),
        # This type has a template for each generation.
        (own_code("InternVL3.5-8B", "InternVLChatModel"), "internvl_chat", "internvl3_5"),
        (own_code("InternVL2.5-8B", "InternVLChatModel", template="internvl2_5"), "internvl_chat", "internvl2_5"),
        (own_code("InternVL2.5-8B", "InternVLChatModel", template="internvl2_5") | {"training__template": "internvl2"},
         "internvl_chat", "internvl2"),
    ],
)  # fmt: skip
def test_a_model_is_known_by_its_hub_name_or_its_architecture(
    values: dict[str, Any], model_type: str, template: str
) -> None:
    assert swift_model(target_of(swift(**values))) == SwiftModel(model_type=model_type, template=template)


def test_a_job_may_name_another_template_and_an_unknown_model_is_noted() -> None:
    assert config_of(CASES["switches"])["template"] == "qwen3_thinking"
    unknown = swift(model__preset=None, model__hf_config={"model_type": "it"})
    assert swift_model(target_of(unknown)) is None
    assert "swift_model_unknown" in {note.code for note in render(unknown, place(unknown)).notes}


@pytest.fixture(scope="module")
def python() -> str:
    result = swift_python()
    if not result:
        pytest.skip(f"no ms-swift here: `make engines` installs it, or {SWIFT} names a Python that has it")
    return result


@pytest.fixture(scope="module")
def answers(python: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Return what its own argument classes say to every case."""
    cases = {}
    for name, created in CASES.items():
        the_job = on_disk(created, tmp_path_factory.mktemp("models"))
        rendered = render(the_job, place(the_job))
        cases[name] = {"files": dict(rendered.files), "environment": dict(rendered.commands[0].environment)}
    return parse_with_swift(python, cases)


NEEDS = {"qlora": "bitsandbytes", "grpo of qlora": "bitsandbytes", "pretraining": "flash"}
"""Case -> the package that this machine may lack, as ms-swift's or transformers' error names it."""


@pytest.mark.e2e
@pytest.mark.engines
def test_the_kept_list_of_keys_of_pairs_is_what_ms_swift_says(python: str) -> None:
    program = (
        "import dataclasses, json; from swift.arguments import RLHFArguments, SftArguments;"
        "own, other = ({field.name for field in dataclasses.fields(kind) if field.init}"
        " for kind in (RLHFArguments, SftArguments)); print(json.dumps(sorted(own - other)))"
    )
    run = subprocess.run([python, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True, cwd="/")
    theirs = set(json.loads(run.stdout.splitlines()[-1]))
    assert theirs - ENGINES["swift-ddp"].owned.keys() == RLHF_KEYS


REFUSED = [
    *REFUSED_BY_MS_SWIFT,
    *((values, {"packing": True, "attn_impl": "flash_attn"}) for values in PACKED_BY_NO_MS_SWIFT),
]


@pytest.fixture(scope="module")
def refusals(python: str, tmp_path_factory: pytest.TempPathFactory) -> list[str | None]:
    """Return what its own argument classes say to what rules refuse."""
    cases = {}
    for number, (values, extra) in enumerate(REFUSED):
        allowed = {path: value for path, value in values.items() if path != "training.packing"}
        the_job = on_disk(with_values(swift("swift-zero3"), allowed), tmp_path_factory.mktemp("models"))
        rendered = render(the_job, place(the_job))
        packed = {"packing": True, "attn_impl": "flash_attn"} if "training.packing" in values else {}
        config = {**yaml.safe_load(rendered.files["config.yaml"]), **packed, **extra}
        files = {**rendered.files, "config.yaml": yaml.safe_dump(config)}
        cases[str(number)] = {"files": files, "environment": dict(rendered.commands[0].environment)}
    answers = parse_with_swift(python, cases)
    return [answers[str(number)]["error"] for number in range(len(REFUSED))]


@pytest.mark.e2e
@pytest.mark.engines
@pytest.mark.parametrize("number", range(len(REFUSED)), ids=[str(each) for each in REFUSED])
def test_ms_swift_refuses_what_the_rule_refuses(number: int, refusals: list[str | None]) -> None:
    assert refusals[number]


@pytest.mark.e2e
@pytest.mark.engines
@pytest.mark.parametrize("case", CASES)
def test_its_own_argument_classes_take_the_rendered_file(case: str, answers: Mapping[str, Any]) -> None:
    error = answers[case]["error"]
    assert error is None or NEEDS.get(case, "no package") in error, error
    if error is None:
        arguments, config = answers[case]["arguments"], config_of(CASES[case])
        same = ("tuner_type", "per_device_train_batch_size", "learning_rate", "max_length", "template", "bf16")
        assert [arguments[key] for key in same] == [config[key] for key in same]


@pytest.mark.e2e
@pytest.mark.engines
def test_the_kept_list_of_keys_is_what_ms_swift_says(python: str) -> None:
    values = run_swift(python, "keys", environment={"MEGABOARD_TRAINER": "swift_trainer"})["swift_trainer"]
    said = {name: EngineKey(type=key["type"], default=key["default"], choices=tuple(key.get("choices", ())))
            for name, key in values["keys"].items()}  # fmt: skip
    known = programs()["swift_trainer"]
    assert (values["version"], said) == (known.version, dict(known.keys))


@pytest.mark.e2e
@pytest.mark.engines
def test_the_kept_models_and_templates_are_what_ms_swift_registers(python: str) -> None:
    file = Path(__file__).parents[2] / "presets" / "swift_models.yaml"
    assert kept(ask_models(python)) == yaml.safe_load(file.read_text())


def test_every_preset_of_a_type_that_ms_swift_registers_has_a_template() -> None:
    found = {key: swift_model(target_of(swift(preset=key))) for key in models()}
    assert found["qwen3-8b"] is not None
    assert {key for key, model in found.items() if model and not model.template} == set()
