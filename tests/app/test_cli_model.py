"""`megaboard model` compares the estimate's parameters with those that transformers builds, if the user requests it."""

import json
from pathlib import Path

import pytest

from app.cli.model import read_profile
from app.main import main
from app.text import render_problem
from backend.job.problems import ProblemsError
from tests.nodes import needs_node_environment
from tools.programs import NODE_PYTHON

TINY = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return tmp_path


def test_a_folder_is_read_without_the_hub(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", str(folder)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == TINY
    assert "qwen3" in printed.err


@pytest.mark.e2e
@needs_node_environment
def test_the_estimate_counts_what_transformers_builds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", str(folder), "--python", str(NODE_PYTHON)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == TINY
    assert "Qwen3ForCausalLM" in printed.err
    assert "3 × Qwen3DecoderLayer" in printed.err
    assert "same number of parameters" in printed.err


@pytest.mark.e2e
@needs_node_environment
def test_a_class_that_transformers_does_not_know_is_named() -> None:
    with pytest.raises(ProblemsError) as raised:
        read_profile(str(NODE_PYTHON), {"model_type": "brand_new", "hidden_size": 64})
    [problem] = raised.value.problems
    assert (problem.code, problem.values["reason_code"]) == ("no_model_profile", "profile_model_type_unknown")
    assert "brand_new" in render_problem("en", problem)["message"]


def test_a_missing_interpreter_is_named() -> None:
    with pytest.raises(ProblemsError) as raised:
        read_profile("/nowhere/python", TINY)
    [problem] = raised.value.problems
    assert (problem.values["python"], problem.values["reason_code"]) == ("/nowhere/python", "profile_failed")
    assert "No such file" in render_problem("zh", problem)["message"]
