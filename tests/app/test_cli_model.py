"""`megaboard model` compares the estimate's parameters with those that transformers builds, if the user requests it."""

import json
from pathlib import Path

import pytest

from app.cli.model import read_profile
from app.main import main
from app.text import render_problem
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.model.model_profile import config_digest, profiled_shape
from backend.job.presets import models
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


def test_a_preset_has_its_config_and_the_profile_that_ships_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "qwen3-vl-8b"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == models()["qwen3-vl-8b"].hf_config
    assert "36 × Qwen3VLTextDecoderLayer" in printed.err
    assert "projector 0.040" in printed.err
    assert "q_proj, k_proj" in printed.err
    assert config_digest(models()["qwen3-vl-8b"].hf_config) in printed.err
    assert "same number of parameters" in printed.err


@pytest.mark.parametrize("preset", ["deepseek-v3", "kimi-k2.5", "gemma-3n-e2b"])
def test_balancing_biases_of_routers_are_no_difference(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", preset]) == 0
    assert "same number of parameters" in capsys.readouterr().err


def test_the_profile_of_a_preset_can_be_written_for_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.json"
    assert main(["model", "qwen3-8b", "--profile", str(file)]) == 0
    written = json.loads(file.read_text())
    config = json.loads(capsys.readouterr().out)
    assert written["versions"] == {"torch": "2.13.0+cpu", "transformers": "5.6.0"}
    assert model_parameters(model_layers(profiled_shape(written, config))) == models()["qwen3-8b"].parameters


def test_a_model_without_a_profile_needs_an_interpreter(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", str(folder), "--profile", str(folder / "profile.json")]) != 0
    assert "--profile needs --python" in capsys.readouterr().err


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
