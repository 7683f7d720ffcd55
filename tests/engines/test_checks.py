"""What a job may say to its engine directly."""

import pytest

from app.i18n import LANGUAGES, STRICT_VARIABLE, render_problem
from backend.engines import check_engine
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.problems import Problem
from tests.engines.jobs import ddp, job


def only(made: Job) -> Problem:
    (problem,) = check_engine(made)
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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("adam_beta2", 0.95),
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
    assert check_engine(ddp(extra=extra)) == []


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
        ("A;B", "x", "environment_bad"),
        ("A", "x\ny", "environment_bad"),
    ],
)
def test_variables_that_break_the_start_or_are_secret_are_refused(name: str, text: str, code: str) -> None:
    problem = only(ddp(environment={name: text}))
    assert (problem.code, problem.field) == (code, f"environment.{name}")


def test_tuning_variables_pass() -> None:
    tuning = {"NCCL_IB_PKEY": "1", "NCCL_DEBUG": "INFO", "PYTHONPATH": "/a:/b", "LABEL": "it's; $HOME"}
    assert check_engine(ddp(environment=tuning)) == []


def test_evaluation_needs_data() -> None:
    problem = only(ddp(training__eval_steps=10))
    assert problem.code == "eval_without_data"
    assert check_engine(with_values(ddp(training__eval_steps=10), problem.edit)) == []


def test_a_home_folder_is_not_expanded_by_the_engine() -> None:
    problems = check_engine(ddp(model__path="~/models/it", training__output_dir="~/runs"))
    assert [problem.field for problem in problems] == ["model.path", "training.output_dir"]


def test_every_problem_has_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT_VARIABLE, "1")
    extra = {"learning_rate": 1, "deepspeed": 1, "api_key": "x", "A": 1, "b": "${c}"}
    environment = {"RANK": "0", "KEY": "x", "A-B": "c"}
    made = ddp(extra=extra, environment=environment, model__path="~/m", training__eval_steps=1)
    problems = check_engine(made)
    assert len({problem.code for problem in problems}) == 10
    for problem in problems:
        for language in LANGUAGES:
            rendered = render_problem(language, problem)
            assert rendered["message"]
            assert rendered["fix"]
