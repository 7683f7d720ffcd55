"""A model that cannot be estimated is no error: rules that need no shape still judge the job."""

import pytest

from backend.engines import export
from backend.estimate import estimate
from backend.job.mapping import parse_job, with_values
from backend.job.presets import known_model, resolve_model
from backend.job.problems import ProblemsError
from backend.job.rules import check
from backend.job.unestimated import UnestimatedModel

PLAIN = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}
NEW = {"model_type": "brand_new", "hidden_size": 64}
REMOTE = {"auto_map": {"AutoModelForCausalLM": "modeling_mine.Mine"}, "d_model": 64}
JOB = {
    "cluster": {"gpu": "h100-80g", "nodes": 2, "gpus_per_node": 8},
    "model": {"hf_config": NEW},
    "engine": "llamafactory-zero3",
}
MEGATRON = {**JOB, "engine": "swift-megatron"}


def job_of(base, values=None):
    job, problems = parse_job(base)
    assert not problems
    return with_values(job, values or {})


def codes(job):
    return [(problem.code, problem.severity) for problem in check(job)]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (NEW, "unsupported_model_type"),
        (REMOTE, "missing_model_key"),
        ({"architectures": ["OddForCausalLM"], "d_model": 64}, "missing_model_key"),
        ({"model_type": "llama"}, "missing_model_key"),
        ({**PLAIN, "kv_lora_rank": 8, "attention_bias": True}, "unsupported_model_key"),
    ],
)
def test_a_model_without_an_estimate_is_one_warning_that_names_the_reason(config, reason):
    job = job_of(JOB, {"model.hf_config": config})
    (problem,) = check(job)
    assert (problem.code, problem.severity, problem.field) == ("model_not_estimated", "warning", "model.hf_config")
    assert problem.values["reason_code"] == reason


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"foo": 1}, "missing_model_key"),
        ({**PLAIN, "model_type": "qwen3", "hidden_size": "64"}, "bad_model_key"),
        ({"model_type": "brand_new", "text_config": "x"}, "bad_model_key"),
    ],
)
def test_a_broken_configuration_is_an_error(config, code):
    (problem,) = check(job_of(JOB, {"model.hf_config": config}))
    assert (problem.code, problem.severity) == (code, "error")


def test_figures_are_refused_with_the_same_warning():
    for figures in (estimate, lambda job: resolve_model(job.model)):
        with pytest.raises(ProblemsError) as caught:
            figures(job_of(JOB))
        assert [problem.code for problem in caught.value.problems] == ["model_not_estimated"]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"parallel.tensor": 3}, "ranks_not_divisible"),
        ({"parallel.tensor": 16}, "tensor_across_nodes"),
        (
            {"parallel.pipeline": 2, "parallel.virtual_pipeline": 2, "training.gradient_accumulation_steps": 3},
            "too_few_micro_batches",
        ),
        ({"parallel.virtual_pipeline": 2}, "virtual_without_pipeline"),
        ({"training.micro_batch_size": 3, "training.global_batch_size": 64}, "global_batch_not_divisible"),
        (
            {"training.packing": True, "parallel.context": 2, "engine": "llamafactory-megatron"},
            "packing_with_context",
        ),
        ({"parallel.pipeline_layout": "Ettt|tttX"}, "pipeline_layout_letters"),
        ({"parallel.pipeline_layout": "Et|tL", "parallel.pipeline": 4}, "pipeline_layout_chunks"),
        ({"training.ddp_timeout_s": 10**6}, "timeout_too_long"),
    ],
)
def test_rules_that_need_no_shape_still_judge(values, code):
    job = job_of(MEGATRON, values)
    problem = next(problem for problem in check(job) if problem.code == code)
    for edit in filter(None, (problem.edit, *problem.choices.values())):
        assert problem.code not in [code for code, _ in codes(with_values(job, edit))]


@pytest.mark.parametrize(
    "values",
    [
        {"parallel.tensor": 8},
        {"parallel.pipeline": 16},
        {"parallel.expert": 2},
        {"training.freeze.vision_tower": True},
        {"training.method": "partial", "training.trainable_layers": 400, "engine": "llamafactory-zero3"},
    ],
)
def test_rules_that_need_the_shape_are_silent(values):
    assert codes(job_of(MEGATRON, values)) == [("model_not_estimated", "warning")]


def test_an_engine_that_lists_its_model_types_still_refuses_others():
    assert ("model_type_not_supported", "error") in codes(job_of({**JOB, "engine": "llamafactory-megatron"}))


@pytest.mark.parametrize("engine", ["llamafactory-ddp", "llamafactory-zero3", "llamafactory-fsdp", "swift-megatron"])
def test_the_job_is_valid_and_its_engine_files_are_made(engine):
    job = job_of({**JOB, "engine": engine}, {"model.path": "/m"})
    files = export(job, placeholders=True)
    assert "/m" in files["config.yaml"]


def test_choices_for_parts_that_may_be_there_reach_the_engine():
    values = {"training.freeze.vision_tower": True, "parallel.expert": 2, "training.dataset": "a.jsonl"}
    text = export(job_of(MEGATRON, {"model.path": "/m", **values}), placeholders=True)["config.yaml"]
    assert "expert_model_parallel_size: 2" in text
    assert "freeze_vit: true" in text


def test_what_the_configuration_says_of_parts_is_known():
    config = {**NEW, "text_config": {"num_local_experts": 16, "num_experts_per_tok": 2, "n_shared_experts": 1}}
    known = known_model(job_of(JOB, {"model.hf_config": config}).model)
    assert isinstance(known, UnestimatedModel)
    assert (known.model_type, known.experts) == ("brand_new", 16)
