"""A LLaMA-Factory configuration becomes the job that it describes. The report names what is lost."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.text import LANGUAGES, has
from app.text.imports import reason_of
from backend.engines import ENGINES
from backend.engines.engine import target_of
from backend.engines.importing import ASSUMED, Imported, ImportLine, import_llamafactory, import_source, read_source
from backend.engines.importing.dialect import LLAMAFACTORY
from backend.engines.importing.readers import KEY_READERS, preset_of
from backend.engines.yaml_text import to_yaml
from backend.job.job import Job
from backend.job.mapping import get_value, parameters, parse_job, with_values
from backend.job.parameters import Parameter
from backend.job.presets import models
from backend.job.problems import ProblemsError
from backend.job.rules import check
from tests.engines.jobs import job as make_job

CLUSTER = {"gpu": "h100-80g", "nodes": 4, "gpus_per_node": 8}
SMALL = {"model_name_or_path": "/models/Qwen3-8B", "do_train": True, "stage": "sft", "finetuning_type": "full"}
IMPORTING = Path(__file__).parents[2] / "backend" / "engines" / "importing"


def imported(config: Mapping[str, Any], **more: Any) -> tuple[Job, dict[str, ImportLine]]:
    """Return the job of SMALL with these keys, and the report by key."""
    imported_job = import_llamafactory({**SMALL, **config}, CLUSTER, **more)
    return job_of(imported_job), {line.key: line for line in imported_job.lines}


def job_of(imported_job: Imported) -> Job:
    job, problems = parse_job(imported_job.mapping)
    assert job is not None, problems
    assert problems == []
    return job


ARTICLE = """
model_name_or_path: /data/models/Qwen3-VL-8B-Instruct
stage: sft
do_train: true
finetuning_type: full
dataset: photos, captions
template: qwen3_vl
cutoff_len: 4096
freeze_vision_tower: true
output_dir: /data/runs/vl-sft
overwrite_output_dir: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 2e-5
evaluation_strategy: no
bf16: true
ddp_timeout: 180000000
tensor_model_parallel_size: 4
sequence_parallel: true
use_distributed_optimizer: true
deepspeed: examples/deepspeed/ds_z3_config.json
save_hf_model: true
micro_batch: 1
wandb_api_key: hunter2
USE_MCA: 1
"""


@pytest.mark.parametrize("shares", ["0.7,0.3", [0.7, 0.3]])
def test_shares_of_data_sets_are_read_from_a_text_and_from_a_list(shares: object) -> None:
    config = {
        "stage": "sft",
        "do_train": True,
        "dataset": "a,b",
        "mix_strategy": "interleave_over",
        "interleave_probs": shares,
    }
    training = job_of(import_llamafactory(config, CLUSTER)).training
    assert (training.mix_strategy, training.interleave_probs) == ("interleave_over", "0.7,0.3")


def test_an_article_s_file_keeps_its_plan_and_loses_its_traps() -> None:
    imported_job = import_llamafactory(yaml.safe_load(ARTICLE), CLUSTER)
    job, lines = job_of(imported_job), {line.key: line for line in imported_job.lines}
    assert (job.engine, job.parallel.tensor, job.parallel.sequence) == ("llamafactory-megatron", 4, True)
    assert (job.training.learning_rate, job.training.eval_steps) == (2e-5, None)
    assert (job.training.template, job.training.dataset) == ("qwen3_vl_nothink", "photos,captions")
    assert (job.training.output_dir, job.name, job.training.ddp_timeout_s) == ("/data/runs", "vl-sft", 1800)
    assert (job.model.preset, job.extra) == ("qwen3-vl-8b", {"save_hf_model": True})
    outcomes = {key: (line.outcome, line.reason and line.reason.code) for key, line in lines.items()}
    assert outcomes["cutoff_len"] == ("kept", None)
    assert outcomes["evaluation_strategy"] == ("renamed", "import_renamed")
    assert outcomes["template"] == ("changed", "import_thinking_template")
    assert outcomes["deepspeed"] == ("changed", "import_deepspeed_with_megatron")
    assert outcomes["ddp_timeout"] == ("changed", "import_timeout")
    assert outcomes["overwrite_output_dir"] == ("dropped", "import_own_folder")
    assert outcomes["micro_batch"] == ("dropped", "import_unknown")
    assert outcomes["save_hf_model"] == ("passed_on", None)


def test_every_key_of_the_file_has_one_line_with_words() -> None:
    config = yaml.safe_load(ARTICLE)
    imported_job = import_llamafactory(config, CLUSTER)
    assert [line.key for line in imported_job.lines if line.outcome != "default"] == list(config)
    for lang in LANGUAGES:
        words = {line.key: reason_of(line, lang) for line in imported_job.lines}
        assert all(words[line.key] for line in imported_job.lines if line.outcome not in ("kept", "passed_on"))


def test_every_reason_the_code_gives_has_words() -> None:
    codes = {code for path in IMPORTING.glob("*.py") for code in re.findall(r'"import_(\w+)"', path.read_text())}
    codes -= {"llamafactory", "source", "swift_megatron"}
    assert len(codes) > 20
    for lang in LANGUAGES:
        missing = [c for c in codes if not has(lang, f"import.why.{c}") and not has(lang, f"problem.import_{c}")]
        assert missing == []


def test_what_the_file_leaves_out_is_what_the_engine_takes_then() -> None:
    job, lines = imported({"tensor_model_parallel_size": 2})
    assert (job.training.cutoff_len, job.training.precision, job.training.micro_batch_size) == (2048, "fp32", 8)
    assert (job.sequence_parallel, job.parallel.distributed_optimizer, job.parallel.rope_fusion) == (False,) * 3
    assert lines["cutoff_len"].outcome == "default"
    laid_out, _ = imported({"pipeline_model_parallel_size": 4, "pipeline_model_parallel_layout": "Et*4|(t*5|)*6t*2L"})
    assert laid_out.parallel.virtual_pipeline == 2
    predicting, _ = imported({"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et*3|t*3mL"})
    assert predicting.parallel.pipeline_layout == "Et*3|t*3L"
    experts, _ = imported({"model_name_or_path": "/m/Qwen3-30B-A3B", "tensor_model_parallel_size": 2})
    assert (experts.parallel.expert_tensor, experts.parallel.moe_token_dispatcher) == (2, "allgather")


def test_the_method_defaults_to_lora_but_megatron_trains_everything() -> None:
    without = {key: value for key, value in SMALL.items() if key != "finetuning_type"}
    hugging_face = job_of(import_llamafactory(without, CLUSTER))
    assert (hugging_face.training.method, hugging_face.training.lora.alpha) == ("lora", 16)
    megatron = job_of(import_llamafactory({**without, "tensor_model_parallel_size": 2}, CLUSTER))
    assert megatron.training.method == "full"


def test_lora_under_megatron_is_kept_refused_and_explained() -> None:
    job, lines = imported({"tensor_model_parallel_size": 2, "finetuning_type": "lora"})
    assert "method_not_supported" in {problem.code for problem in check(job)}
    for lang in LANGUAGES:
        assert "swift-megatron" in reason_of(lines["finetuning_type"], lang)


def zero(stage: int, **more: Any) -> dict[str, Any]:
    return {"deepspeed": {"zero_optimization": {"stage": stage, **more}}}


@pytest.mark.parametrize(
    ("config", "engine"),
    [
        ({}, "llamafactory-ddp"),
        ({"use_mca": True}, "llamafactory-megatron"),
        ({"deepspeed": "ds/ds_z2_offload_config.json"}, "llamafactory-zero2-offload"),
        ({"deepspeed": "ds/ds_z3_config.json"}, "llamafactory-zero3"),
        (zero(3, offload_param={"device": "cpu"}), "llamafactory-zero3-offload"),
        (zero(2, offload_optimizer={"device": "none"}), "llamafactory-zero2"),
        ({"deepspeed": "ds/ds_z0_config.json"}, "llamafactory-ddp"),
        ({"fsdp": ["full_shard", "auto_wrap"]}, "llamafactory-fsdp"),
        ({"ACCELERATE_USE_FSDP": True}, "llamafactory-fsdp"),
        ({"deepspeed": None}, "llamafactory-ddp"),
    ],
)  # fmt: skip
def test_the_engine_follows_from_what_shards(config: dict[str, Any], engine: str) -> None:
    assert imported(config)[0].engine == engine


@pytest.mark.parametrize(
    ("config", "fsdp"),
    [
        ({"fsdp": "full_shard auto_wrap offload"}, (1, True, True)),
        ({"fsdp": "shard_grad_op"}, (1, False, False)),
        ({"fsdp": "full_shard", "fsdp_config": {"version": 2, "reshard_after_forward": False}}, (2, False, False)),
    ],
)
def test_fsdp_keeps_its_version_and_what_it_shards(config: dict[str, Any], fsdp: tuple[int, bool, bool]) -> None:
    created = imported(config)[0].parallel.fsdp
    assert (created.version, created.reshard_after_forward, created.offload) == fsdp


def test_deepspeed_settings_at_hand_count_more_than_the_name_of_their_file() -> None:
    stage_2 = {"zero_optimization": {"stage": 2}}
    job, lines = imported({"deepspeed": "ds_z3.json"}, read_file=lambda path: stage_2)
    assert job.engine == "llamafactory-zero2"
    assert lines["deepspeed"].outcome == "changed"


@pytest.mark.parametrize(
    ("name", "read_file"),
    [("mine_z3.json", None), ("ds_z3_offload_config.json", lambda path: None), ("a/ds_z2.json", lambda path: None)],
)
def test_deepspeed_settings_that_cannot_be_found_are_an_error_and_no_guess(name: str, read_file: Any) -> None:
    with pytest.raises(ProblemsError, match="import_deepspeed_missing"):
        imported({"deepspeed": name}, read_file=read_file)


@pytest.mark.parametrize(
    ("settings", "engine", "values", "code"),
    [
        (zero(3, offload_optimizer={"device": "cpu"}), "llamafactory-zero3-offload",
         {"parallel.offload_parameters": False}, "import_deepspeed_ours"),
        (zero(3, offload_optimizer={"device": "cpu"}, offload_param={"device": "cpu"}), "llamafactory-zero3-offload",
         {"parallel.offload_parameters": True}, "import_deepspeed_ours"),
        (zero(3, offload_param={"device": "cpu"}), "llamafactory-zero3-offload", {}, "import_offload_weights_alone"),
        (zero(3, offload_optimizer={"device": "nvme", "nvme_path": "/d"}), "llamafactory-zero3-offload",
         {"parallel.offload_device": "nvme", "parallel.offload_folder": "/d"}, "import_deepspeed_ours"),
        ({"deepspeed": {"zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 2}}},
         "llamafactory-zero2", {}, "import_deepspeed_lost"),
        ({"deepspeed": "x/ds_z3_offload_config.json"}, "llamafactory-zero3-offload",
         {"parallel.offload_parameters": True}, "import_deepspeed_stock"),
    ],
)  # fmt: skip
def test_what_deepspeed_offloads_stays_as_it_is(
    settings: dict[str, Any], engine: str, values: dict[str, Any], code: str
) -> None:
    job, lines = imported(settings)
    assert (job.engine, lines["deepspeed"].reason and lines["deepspeed"].reason.code) == (engine, code)
    assert {path: get_value(job, path) for path in values} == values


def test_pretraining_is_packed_and_keeps_its_length_unless_the_file_says_otherwise() -> None:
    job, _ = imported({"stage": "pt", "cutoff_len": 8192, "max_steps": 40})
    assert (job.training.packing, job.training.cutoff_len, job.training.max_steps) == (True, 8192, 40)
    assert imported({"stage": "pt", "packing": False})[0].training.packing is False


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"stage": "ppo"}, "import_stage"),
        ({"finetuning_type": "oft"}, "import_method"),
        ({"do_train": False}, "import_no_training"),
        ({"use_kt": True}, "import_kt"),
        ({"mixed_precision": "bf16_mixed", "tensor_model_parallel_size": 2}, "import_megatron_bridge"),
        ({"USE_MEGATRON_BRIDGE": 1}, "import_megatron_bridge"),
        ({"distributed_type": "FSDP"}, "import_accelerate_file"),
    ],
)
def test_training_that_no_engine_here_does_is_refused_not_guessed(config: dict[str, Any], code: str) -> None:
    with pytest.raises(ProblemsError) as raised:
        imported(config)
    assert [problem.code for problem in raised.value.problems] == [code]


def test_a_configuration_of_the_second_trainer_is_refused() -> None:
    with pytest.raises(ProblemsError, match="import_not_v0"):
        import_source(read_source("model: Qwen/Qwen3-0.6B\ntrain_dataset: d.yaml\nmicro_batch_size: 1"), CLUSTER)


def test_a_value_out_of_range_is_corrected_and_reported() -> None:
    job, lines = imported({"cutoff_len": 4, "lr_scheduler_type": "cosine_with_restarts", "seed": "x"})
    assert (job.training.cutoff_len, job.training.seed) == (8, 42)
    assert (lines["cutoff_len"].outcome, lines["seed"].outcome) == ("changed", "dropped")
    assert (lines["lr_scheduler_type"].outcome, job.training.lr_scheduler) == ("dropped", "cosine")


def test_a_secret_is_neither_kept_nor_shown() -> None:
    job, lines = imported({"hub_token": "abc", "ms_hub_token": "abc", "WANDB_API_KEY": "abc"})
    assert (dict(job.extra), dict(job.environment)) == ({}, {})
    for key in ("hub_token", "ms_hub_token", "WANDB_API_KEY"):
        assert lines[key].outcome == "dropped"
        assert "abc" not in str((lines[key].value, lines[key].became, lines[key].reason))


@pytest.mark.parametrize(
    ("config", "path", "value"),
    [
        ({"quantization_bit": 4, "finetuning_type": "lora"}, "training.method", "qlora"),
        ({"finetuning_type": "freeze", "num_layer_trainable": 3}, "training.trainable_layers", 3),
        ({"image_resolution": 512, "model_name_or_path": "/m/Qwen3-VL-8B"}, "training.image_max_pixels", 512 * 512),
        ({"image_resolution": 300_000, "model_name_or_path": "/m/Qwen3-VL-8B"}, "training.image_max_pixels", 300_000),
        ({"warmup_steps": 10, "max_steps": 100}, "training.warmup_ratio", 0.1),
        ({"warmup_steps": 10}, "training.warmup_ratio", 0.0),
        ({"max_steps": -1}, "training.max_steps", None),
        ({"eval_strategy": "steps", "logging_steps": 20}, "training.eval_steps", 20),
        ({"eval_strategy": False}, "training.eval_steps", None),
        ({"report_to": "none"}, "training.report_to", ()),
        ({"lora_target": ["q_proj", "v_proj"], "finetuning_type": "lora"}, "training.lora.targets", "q_proj,v_proj"),
        ({"learning_rate": "1e-4"}, "training.learning_rate", 1e-4),
        ({"disable_gradient_checkpointing": True}, "parallel.recompute", "none"),
        ({"dataset_dir": "data"}, "training.dataset_dir", None),
        ({"stage": "kto"}, "training.stage", "kto"),
        ({"stage": "rm"}, "training.stage", "rm"),
        ({"stage": "kto", "pref_beta": 0.2}, "training.dpo.beta", 0.2),
        ({"dpo_beta": 0.2, "stage": "dpo"}, "training.dpo.beta", 0.2),
        ({"save_strategy": False}, "extra", {"save_strategy": "no"}),
        ({"adam_beta2": "0.95"}, "extra", {"adam_beta2": 0.95}),
    ],
)  # fmt: skip
def test_a_key_means_what_the_engine_makes_of_it(config: dict[str, Any], path: str, value: Any) -> None:
    assert get_value(imported(config)[0], path) == value


def test_what_only_yaml_can_say_is_not_passed_on() -> None:
    job, lines = imported({"adam_beta1": float("nan"), "run_name": yaml.safe_load("2026-11-21")})
    assert (dict(job.extra), lines["run_name"].outcome) == ({}, "dropped")


def test_the_shape_of_a_model_that_is_no_preset_is_read_from_its_folder_where_that_is_at_hand() -> None:
    shape = dict(models()["qwen3-30b-a3b"].hf_config)
    folders = {"/models/mine/config.json": shape}
    job, _ = imported({"model_name_or_path": "/models/mine", "tensor_model_parallel_size": 2}, read_file=folders.get)
    assert (job.model.hf_config, job.model.preset) == (shape, None)
    assert job.parallel.moe_token_dispatcher == "allgather"
    assert imported({"model_name_or_path": "/models/mine"})[0].model.hf_config == {}


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Qwen/Qwen3-VL-8B-Instruct", "qwen3-vl-8b"),
        ("/models/Qwen3-30B-A3B-Instruct-2507/", "qwen3-30b-a3b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("somebody/else-7B", None),
    ],
)
def test_a_model_s_name_tells_the_preset(name: str, preset: str | None) -> None:
    assert preset_of(name) == preset


WILD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
KEYS = sorted({key for engine in ENGINES.values() for key in engine.owned} | set(KEY_READERS)
              | set(LLAMAFACTORY.renamed) | {"fsdp", "fsdp_config", "deepspeed",
              "use_mca", "FSDP_VERSION", "RANK", "adam_beta1"})  # fmt: skip


@settings(max_examples=60)
@given(wild=st.dictionaries(st.sampled_from(KEYS), WILD, max_size=5))
@example(wild={"ddp_timeout": float("inf")})
def test_whatever_stands_in_a_file_it_is_imported_or_refused_with_words(wild: dict[str, Any]) -> None:
    try:
        imported_job = import_llamafactory({**SMALL, **wild}, CLUSTER)
    except ProblemsError:
        return
    job_of(imported_job)
    assert [line.key for line in imported_job.lines if line.outcome != "default"] == list({**SMALL, **wild})
    for line in imported_job.lines:
        reason_of(line, "en")


MODELS = {
    "qwen3-8b": ("/models/Qwen3-8B", "qwen3"),
    "qwen3-30b-a3b": ("/models/Qwen3-30B-A3B", "qwen3"),
    "qwen3-vl-8b": ("/models/Qwen3-VL-8B-Instruct", "qwen3_vl_nothink"),
}
NOT_SAID = ("cluster.", "model.", "version", "engine", "environment", "extra", "training.global_batch_size",
            "training.samples", "training.images_per_sample")  # fmt: skip
TEXTS = {
    "name": st.just("it"),
    "training.dataset": st.sampled_from(("a", "a,b")),
    "training.dataset_dir": st.just("/data"),
    "training.output_dir": st.just("/runs/base"),
    "training.lora.targets": st.sampled_from(("all", "q_proj,v_proj")),
    "training.template": st.none(),
}


def values_of(item: Parameter) -> st.SearchStrategy[Any]:
    """Return values of a parameter within its range."""
    if item.path in TEXTS:
        return TEXTS[item.path]
    choices: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "choice": st.sampled_from(item.choices or ("",)),
        "list": st.lists(st.sampled_from(item.choices or ("",)), unique=True).map(tuple),
    }
    low = item.minimum if item.minimum is not None else item.above or 0
    high = min(item.maximum if item.maximum is not None else 1e6, 86_400 if "timeout" in item.path else 1e6)
    if item.kind == "int":
        result = st.integers(int(low), int(high))
    elif item.kind == "float":
        result = st.floats(float(low), float(high), exclude_min=item.above is not None, allow_subnormal=False)
    else:
        result = choices[item.kind]
    return st.one_of(st.none(), result) if item.optional else result


LEAVES = {
    path: values_of(item)
    for path, item in parameters().items()
    if not path.startswith(NOT_SAID) and (item.kind not in ("str", "mapping") or path in TEXTS)
}


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Return a job with any engine values within their ranges. The plan need not be legal."""
    name = draw(st.sampled_from([engine for engine in ENGINES if engine.startswith("llamafactory-")]))
    preset = draw(st.sampled_from(list(MODELS)))
    changed = draw(st.lists(st.sampled_from(list(LEAVES)), unique=True, max_size=12))
    values = {path: draw(LEAVES[path]) for path in changed}
    path, template = MODELS[preset]
    values |= {"engine": name, "model.path": path, "training.template": template, "training.output_dir": "/runs/base"}
    values |= {"training.method": draw(st.sampled_from(ENGINES_METHODS[name]))}
    # LLaMA-Factory has no grpo: such a job is refused, and its file has no stage that could be read again.
    values |= {"training.stage": "sft"} if values.get("training.stage") == "grpo" else {}
    return with_values(make_job(preset), values)


ENGINES_METHODS = {name: make_job(engine=name).traits.methods for name in ENGINES}


@settings(max_examples=40)
@given(job=jobs())
def test_what_a_job_renders_to_is_imported_as_the_same_job_as_far_as_the_engine_carries_it(job: Job) -> None:
    engine = ENGINES[job.engine]
    folder = "/runs/base/20261121-120000-it-abcd"
    target = target_of(job)
    config, files, variables = engine.config(target, folder), engine.files(target), engine.environment(target)
    imported_job = import_llamafactory(
        {**yaml.safe_load(to_yaml(config)), **variables},
        CLUSTER,
        lambda path: yaml.safe_load(files[path]) if path in files else None,
    )
    back = job_of(imported_job)
    assert (back.engine, back.name, back.training.output_dir) == (job.engine, "it", "/runs/base")
    again = target_of(back)
    assert engine.config(again, folder) == config
    assert (engine.files(again), engine.environment(again)) == (files, variables)


def test_what_is_dropped_went_nowhere() -> None:
    values = {"stage": "sft", "do_train": True, "finetuning_type": "lora", "lora_rank": "eight", "adam_beta1": "loud"}
    lines = {line.key: line for line in import_llamafactory(values, ASSUMED).lines}
    assert [(lines[key].outcome, lines[key].path) for key in ("lora_rank", "adam_beta1")] == [("dropped", None)] * 2
