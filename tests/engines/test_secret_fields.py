"""A job file carries no secret. A value that is named or looks like one is refused, with a fix."""

from dataclasses import replace

import pytest

from app.text import LANGUAGES, STRICT_VARIABLE, render_problem
from backend.engines import check_engine
from backend.job.cluster import Container, Environment, Host
from backend.job.job import Job
from backend.job.job_secrets import without_secrets
from backend.job.mapping import to_mapping, with_values
from tests.engines.jobs import ddp

TOKEN = f"hf_{'a' * 24}"


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "MODELSCOPE_API_TOKEN", "SWANLAB_API_KEY", "hf_token", "PASSPHRASE"),
        *("AWS_SECRET_ACCESS_KEY", "WANDB_KEY", "SLACK_WEBHOOK_URL", "CREDS", "MYSQL_PWD"),
    ],
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


@pytest.mark.parametrize("text", ["http://user:hunter2@proxy:3128", "https://0123456789abcdef0123@host/a"])
def test_an_address_with_a_password_is_refused_under_any_name(text: str) -> None:
    assert [problem.code for problem in check_engine(ddp(environment={"HTTPS_PROXY": text}))] == ["environment_secret"]
    assert [problem.code for problem in check_engine(ddp(extra={"run_name": text}))] == ["extra_secret"]


def test_a_path_and_an_address_without_a_password_are_no_secrets() -> None:
    variables = {
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/gcp/key.json",
        "AWS_SHARED_CREDENTIALS": "~/.aws/credentials",
        "HTTPS_PROXY": "http://proxy.example.com:3128",
        "NO_PROXY": "a@b,10.0.0.1:80",
    }
    job = ddp(environment=variables)
    assert check_engine(job) == []
    assert without_secrets(to_mapping(job)) == to_mapping(job)


def test_a_secret_in_the_container_of_a_spare_is_refused_and_not_stored() -> None:
    environment = Environment(python="/p", container=Container(image="train:1", options=("-e", "HF_TOKEN=x")))
    spare = Host(address="10.0.0.9", environments={"llamafactory": environment})
    job = with_values(ddp(), {"cluster.spares": (spare,)})
    (problem,) = check_engine(job)
    assert problem.field == "cluster.spares[0].environments.llamafactory.container.options"
    assert "HF_TOKEN=x" not in str(without_secrets(to_mapping(job)))


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "HF_TOKENS_SEEN", "KEYBOARD", "OLDPWD"])
def test_other_variables_pass(name: str) -> None:
    assert check_engine(ddp(environment={name: "true"})) == []


@pytest.mark.parametrize("name", ["DB_PASSWORD", "MY_PASSWD", "SSH_PASSPHRASE", "CLIENT_SECRET", "HF_TOKEN"])
def test_a_value_that_only_begins_like_a_path_is_refused_where_no_file_is_meant(name: str) -> None:
    assert [problem.code for problem in check_engine(ddp(environment={name: "/p4ss"}))] == ["environment_secret"]
    assert [problem.code for problem in check_engine(_in_container("-e", f"{name}=/p4ss"))] == ["container_secret"]


@pytest.mark.parametrize("name", ["reft_layer_key", "teacher_tag_key", "vera_projection_prng_key"])
def test_an_argument_that_names_a_key_of_data_is_no_secret(name: str) -> None:
    assert "extra_secret" not in [problem.code for problem in check_engine(ddp(extra={name: "a"}))]


@pytest.mark.parametrize("section", ["environment", "extra"])
@pytest.mark.parametrize(
    "text",
    ["HTTP_PROXY: http://user:hunter2@proxy:8080\n- x", "A: https://hunter2@host\n- x", "DB_PASSWORD: hunter2\n- x"],
)
def test_a_section_that_is_still_text_is_not_stored_with_a_secret(section: str, text: str) -> None:
    assert without_secrets({section: text, "name": "a"}) == {"name": "a"}
    assert without_secrets({section: "A: http://proxy:8080\n- x"}) == {section: "A: http://proxy:8080\n- x"}


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
        (("-ite", "HF_TOKEN=x"), "HF_TOKEN"),
        (("-iteHF_TOKEN=x",), "HF_TOKEN"),
        (("-dit", "-qe=HF_TOKEN=x"), "HF_TOKEN"),
        (("--password=hunter2",), "--password"),
        (("--gpus=all", "--registry-token", "hunter2"), "--registry-token"),
        (("--log-opt", "splunk-token=hunter2"), "splunk-token"),
        (("--log-opt=mode=non-blocking,splunk-token=hunter2",), "splunk-token"),
        (("--volume-opt=o=username=a,password=hunter2",), "password"),
        (("--env=https_proxy=http://user:hunter2@proxy:3128",), "https_proxy"),
        (("--env", "ALL_PROXY=socks5://user:hunter2@proxy"), "ALL_PROXY"),
        (("--http-proxy=http://user:hunter2@proxy",), "--http-proxy"),
        (("--annotation", f"docs=https://{TOKEN}@host/a"), "options"),
        (("-e", TOKEN), "options"),
        ((f"--env={TOKEN}",), "options"),
        (("-e", f"{TOKEN}=x"), "options"),
        (("-e", "http://user:hunter2@proxy?a=b"), "options"),
        (("--http://user:hunter2@proxy",), "options"),
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
    assert "hunter2" not in stored
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
        ("--env=GOOGLE_APPLICATION_CREDENTIALS=/etc/gcp/key.json", "-ite", "SSL_KEY=~/certs/a.pem"),
        ("--decryption-key=/etc/keys/image.pem", "--pem-path=/etc/keys/image.pem"),
        ("--env=https_proxy=http://proxy.example.com:3128", "--env", "REPO=ssh://git@example.com/a"),
        ("-it", "--name=token", "--passphrase", "--nv", "--pwd", "/data"),
    ],
)
def test_other_options_of_a_container_pass(options: tuple[str, ...]) -> None:
    job = _in_container(*options)
    assert check_engine(job) == []
    assert without_secrets(to_mapping(job)) == to_mapping(job)
