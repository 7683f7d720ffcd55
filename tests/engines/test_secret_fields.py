"""A job file carries no secret. A value that is named or looks like one is refused, with a fix."""

import pytest

from backend.engines import check_engine
from tests.engines.jobs import ddp

TOKEN = f"hf_{'a' * 24}"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "MODELSCOPE_API_TOKEN", "SWANLAB_API_KEY", "hf_token", "PASSPHRASE"],
)
def test_a_variable_that_is_named_like_a_secret_is_refused(name: str) -> None:
    assert [problem.code for problem in check_engine(ddp(environment={name: "x"}))] == ["environment_secret"]


@pytest.mark.parametrize("text", [TOKEN, "sk-0123456789abcdef", "ghp_0123456789abcdef", "AKIAIOSFODNN7EXAMPLE"])
def test_a_value_that_looks_like_a_token_is_refused_under_any_name(text: str) -> None:
    assert [problem.code for problem in check_engine(ddp(environment={"HARMLESS": text}))] == ["environment_secret"]
    assert [problem.code for problem in check_engine(ddp(extra={"run_name": text}))] == ["extra_secret"]


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "HF_TOKENS_SEEN", "KEYBOARD"])
def test_other_variables_pass(name: str) -> None:
    assert check_engine(ddp(environment={name: "true"})) == []
