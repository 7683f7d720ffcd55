"""What a job may pass directly to its engine."""

import pytest

from app.text import LANGUAGES, STRICT_VARIABLE, render_problem
from backend.engines import check_engine, data_config
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.problems import Problem
from tests.engines.jobs import ddp, job


def only(the_job: Job) -> Problem:
    (problem,) = check_engine(the_job)
    return problem


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("learning_rate", 1e-3, "extra_owned"),
        ("warmup_steps", 10, "extra_owned"),
        ("gradient_checkpointing", False, "extra_owned"),
        ("deepspeed", "ds.json", "extra_refused"),
        ("fsdp_config", {}, "extra_refused"),
        ("pure_bf16", True, "extra_refused"),
        ("auto_find_batch_size", True, "extra_refused"),
        ("use_ray", True, "extra_refused"),
        ("tensorboard_dir", "/elsewhere", "extra_refused"),
        ("overwrite_output_dir", True, "extra_refused"),
        ("swanlab_api_key", "x", "extra_secret"),
        ("ms_hub_token", "x", "extra_secret"),
        ("Two words", 1, "extra_bad_key"),
        ("a: b\nc", 1, "extra_bad_key"),
        ("default_system", "${oc.env:HOME}", "extra_bad_value"),
        ("lr_scheduler_kwargs", {"a": ["b\nc"]}, "extra_bad_value"),
    ],
)
def test_extra_keys_that_would_mislead_the_engine_are_refused(key: str, value: object, code: str) -> None:
    problem = only(ddp(extra={key: value}))
    assert (problem.code, problem.field, problem.severity) == (code, f"extra.{key}", "error")
    assert problem.edit == {"extra": {}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("adam_beta2", 0.95),
        ("max_grad_norm", None),
        ("default_system", '你好; it\'s "fine"'),
        ("split_special_tokens", True),
        ("lr_scheduler_kwargs", {"min_lr": 1e-6}),
    ],
)
def test_other_extra_keys_pass(key: str, value: object) -> None:
    assert check_engine(ddp(extra={key: value})) == []


def test_a_key_belongs_to_the_engine_that_has_it() -> None:
    extra = {"tensor_model_parallel_size": 2}
    assert only(job(extra=extra)).values["path"] == "parallel.tensor"
    assert only(ddp(extra=extra)).code == "extra_unknown"


@pytest.mark.parametrize(
    ("key", "value", "code", "edit"),
    [
        # PyYAML reads 1e-8 as this text.
        ("adam_epsilon", "1e-8", "extra_wrong_type", 1e-8),
        ("max_samples", "1000", "extra_wrong_type", 1000),
        ("train_on_prompt", "true", "extra_wrong_type", True),
        ("max_samples", 2.5, "extra_wrong_type", None),
        ("max_samples", True, "extra_wrong_type", None),
        ("max_grad_norm", "loud", "extra_wrong_type", None),
        ("run_name", 20261121, "extra_wrong_type", "20261121"),
        ("resize_vocab", {"a": 1}, "extra_wrong_type", None),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_because_llamafactory_takes_it_without_a_look(
    key: str, value: object, code: str, edit: object
) -> None:
    the_job = ddp(extra={"plot_loss": True, key: value})
    problem = only(the_job)
    assert (problem.code, problem.field, problem.severity) == (code, f"extra.{key}", "error")
    fixed = with_values(the_job, problem.edit or {"extra": {}})
    assert fixed.extra == ({"plot_loss": True} if edit is None else {"plot_loss": True, key: edit})
    assert check_engine(fixed) == []


@pytest.mark.parametrize(
    ("key", "value", "code", "extra"),
    [
        ("max_grad_nrom", 0.5, "extra_unknown_near", {"max_grad_norm": 0.5}),
        ("no_such_argument", 1, "extra_unknown", {}),
        ("mix_strategy", "interleve_under", "extra_not_a_choice", {"mix_strategy": "interleave_under"}),
        ("logging_strategy", False, "extra_not_a_choice", {"logging_strategy": "no"}),
        ("flash_attn", "quick", "extra_not_a_choice", {}),
    ],
)
def test_what_no_known_version_takes_is_warned_of_with_what_was_probably_meant(
    key: str, value: object, code: str, extra: dict[str, object]
) -> None:
    the_job = ddp(extra={key: value})
    problem = only(the_job)
    assert (problem.code, problem.field, problem.severity) == (code, f"extra.{key}", "warning")
    assert with_values(the_job, problem.edit).extra == extra


@pytest.mark.parametrize(
    ("engine", "extra"),
    [
        ("llamafactory-ddp", {"eval_dataset": ["a", "b"], "interleave_probs": [0.5, 0.5], "val_size": 1}),
        ("llamafactory-megatron", {"ckpt_format": "torch_dist", "additional_configs": {"cp_comm_type": "p2p"}}),
        ("swift-megatron", {"attention_backend": "auto", "split_dataset_ratio": "0.01", "padding_free": "true"}),
    ],
)
def test_values_as_the_engines_take_them_pass(engine: str, extra: dict[str, object]) -> None:
    assert check_engine(job(engine=engine, extra=extra)) == []


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("USE_MCA", "0", "environment_owned"),
        ("MASTER_ADDR", "1.2.3.4", "environment_owned"),
        ("ACCELERATE_USE_FSDP", "true", "environment_owned"),
        ("FSDP_VERSION", "2", "environment_owned"),
        ("PET_LOG_DIR", "/tmp", "environment_owned"),
        ("MEGABOARD_RUN", "x", "environment_owned"),
        ("WANDB_API_KEY", "x", "environment_secret"),
        ("HF_TOKEN", "x", "environment_secret"),
        ("CUDA_VISIBLE_DEVICES", "0", "visible_gpus_too_few"),
        ("A;B", "x", "environment_bad"),
        ("A", "x\ny", "environment_bad"),
    ],
)
def test_variables_that_break_the_start_or_are_secret_are_refused(name: str, text: str, code: str) -> None:
    problem = only(ddp(environment={name: text}))
    assert (problem.code, problem.field) == (code, f"environment.{name}")
    assert problem.edit == {"environment": {}}


def test_tuning_variables_pass() -> None:
    tuning = {"NCCL_IB_PKEY": "1", "NCCL_DEBUG": "INFO", "PYTHONPATH": "/a:/b", "LABEL": "it's; $HOME"}
    assert check_engine(ddp(environment=tuning)) == []


def test_evaluation_needs_data() -> None:
    problem = only(ddp(training__eval_steps=10))
    assert problem.code == "eval_without_data"
    assert check_engine(with_values(ddp(training__eval_steps=10), problem.edit)) == []


@pytest.mark.parametrize(
    ("the_job", "code"),
    [
        (ddp(training__eval_size=0.1, training__eval_dataset="other"), "eval_data_twice"),
        (ddp(training__eval_size=1.0), "eval_size_bad"),
        (ddp(training__eval_size=2.5), "eval_size_bad"),
        (job(engine="swift-megatron", training__eval_size=100), "eval_size_bad"),
        (job(engine="swift-megatron", training__eval_dataset="other"), "eval_dataset_of_swift"),
        (ddp(training__eval_size=0.1, extra={"val_size": 0.2}), "extra_owned"),
    ],
)
def test_evaluation_data_that_an_engine_refuses_have_an_edit_that_mends_them(the_job: Job, code: str) -> None:
    problem = only(the_job)
    assert problem.code == code
    assert check_engine(with_values(the_job, problem.edit)) == []


@pytest.mark.parametrize("size", [0.05, 100])
def test_held_out_data_are_written_for_the_engine(size: float) -> None:
    the_job = ddp(training__eval_size=size, training__eval_steps=5)
    assert check_engine(the_job) == []
    assert data_config(the_job)["val_size"] == size


def test_a_job_file_of_before_keeps_its_held_out_data_in_extra() -> None:
    the_job = ddp(extra={"val_size": 0.1}, training__eval_steps=5)
    assert check_engine(the_job) == []
    assert (the_job.eval_size, data_config(the_job)["val_size"]) == (0.1, 0.1)


def test_a_home_folder_is_not_expanded_by_the_engine() -> None:
    problems = check_engine(ddp(model__path="~/models/it", training__output_dir="~/runs"))
    assert [problem.field for problem in problems] == ["model.path", "training.output_dir"]


def test_every_problem_has_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT_VARIABLE, "1")
    extra = {"learning_rate": 1, "deepspeed": 1, "api_key": "x", "A": 1, "b": "${c}", "max_grad_norm": "x"}
    extra |= {"flash_attn": "x", "max_samplse": 1, "nonsense": 1}
    environment = {"RANK": "0", "API_KEY": "x", "A-B": "c"}
    the_job = ddp(extra=extra, environment=environment, model__path="~/m", training__eval_steps=1)
    problems = check_engine(the_job)
    assert len({problem.code for problem in problems}) == 14
    for problem in problems:
        for language in LANGUAGES:
            rendered = render_problem(language, problem)
            assert rendered["message"]
            assert rendered["fix"]
