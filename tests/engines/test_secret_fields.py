"""A job file carries no secret. A value that is named or looks like one is refused, with a fix."""

from dataclasses import replace

import pytest

from app.text import LANGUAGES, STRICT_VARIABLE, render_problem
from backend.engines import check_engine
from backend.engines.job_secrets import without_secrets
from backend.job.cluster import Container, Environment
from backend.job.job import Job
from backend.job.mapping import to_mapping, with_values
from tests.engines.jobs import ddp

TOKEN = f"hf_{'a' * 24}"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "MODELSCOPE_API_TOKEN", "SWANLAB_API_KEY", "hf_token", "PASSPHRASE"],
)
def test_a_variable_that_is_named_like_a_secret_is_refused(name: str) -> None:
    assert [problem.code for problem in check_engine(ddp(environment={name: "x"}))] == ["environment_secret"]


TOKENS = [
    TOKEN,
    f"wandb_v1_{'aB3_' * 19}c",
    "ms-01234567-89ab-cdef-0123-456789abcdef",
    "sk-0123456789abcdef",
    "ghp_0123456789abcdef",
    "AKIAIOSFODNN7EXAMPLE",
]


@pytest.mark.parametrize("text", TOKENS)
def test_a_value_that_looks_like_a_token_is_refused_under_any_name(text: str) -> None:
    assert [problem.code for problem in check_engine(ddp(environment={"HARMLESS": text}))] == ["environment_secret"]
    assert [problem.code for problem in check_engine(ddp(extra={"run_name": text}))] == ["extra_secret"]


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "HF_TOKENS_SEEN", "KEYBOARD"])
def test_other_variables_pass(name: str) -> None:
    assert check_engine(ddp(environment={name: "true"})) == []


def _in_container(*options: str, on_host: bool = False) -> Job:
    environment = Environment(python="/opt/lf/bin/python", container=Container(image="train:1", options=options))
    job = ddp()
    if on_host:
        hosts = (job.cluster.hosts[0], replace(job.cluster.hosts[1], environments={"llamafactory": environment}))
        return with_values(job, {"cluster.hosts": hosts})
    return with_values(job, {"cluster.environments": {"llamafactory": environment}})


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--env=WANDB_API_KEY=0123",), "WANDB_API_KEY"),
        (("--gpus=all", "--env", "HF_TOKEN=x"), "HF_TOKEN"),
        (("-e", "HF_TOKEN=x"), "HF_TOKEN"),
        (("-eHF_TOKEN=x",), "HF_TOKEN"),
        (("-e=HF_TOKEN=x",), "HF_TOKEN"),
        (("--env HF_TOKEN=x",), "HF_TOKEN"),
        (("--env", "A=1,HF_TOKEN=x"), "HF_TOKEN"),
        (("-e", "--env=HF_TOKEN=x"), "HF_TOKEN"),
        (("--env=PGPASSWORD=x",), "PGPASSWORD"),
        (("--env=WANDB_APIKEY=x",), "WANDB_APIKEY"),
        (("--env=MYSQL_PWD=x",), "MYSQL_PWD"),
        (("--env=HARMLESS=" + TOKEN,), "HARMLESS"),
        (("--label=a=" + TOKEN,), "--label"),
        (("--label", TOKEN), "options"),
    ],
)
@pytest.mark.parametrize("on_host", [False, True])
def test_an_option_of_a_container_that_holds_a_secret_is_refused_and_not_stored(
    options: tuple[str, ...], name: str, on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STRICT_VARIABLE, "1")
    job = _in_container(*options, on_host=on_host)
    (problem,) = check_engine(job)
    place = "cluster.hosts[1].environments" if on_host else "cluster.environments"
    assert (problem.code, problem.field) == ("container_secret", f"{place}.llamafactory.container.options")
    assert problem.values == {"name": name}
    assert all(TOKEN not in str(render_problem(lang, problem)) for lang in LANGUAGES)
    stored = str(without_secrets(to_mapping(job)))
    assert TOKEN not in stored
    assert "HF_TOKEN=x" not in stored
    assert "=0123" not in stored
    assert "train:1" in stored
    assert ("--gpus=all" in stored) is ("--gpus=all" in options)


@pytest.mark.parametrize(
    "options",
    [
        ("-e", "HF_TOKEN"),
        ("--env=HF_TOKEN", "--env-file=/etc/train.env"),
        ("--secret=hub_token,type=env", "--label=key=train"),
        ("--volume=hf_datasets_cache:/data", "--mount=type=volume,source=hf_datasets_cache,target=/data"),
        ("--env", "NCCL_DEBUG=INFO", "--privileged"),
    ],
)
def test_other_options_of_a_container_pass(options: tuple[str, ...]) -> None:
    job = _in_container(*options)
    assert check_engine(job) == []
    assert without_secrets(to_mapping(job)) == to_mapping(job)
