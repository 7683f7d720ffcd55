"""Training and serving render the same text for the same conversation, by the engines' own code."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.demo import tiny_model
from backend.engines.engine import target_of
from backend.engines.swift_inference import swift_inference_keys
from backend.engines.swift_models import swift_model
from tests.engines.jobs import job
from tests.nodes import skip_without_node_environment
from tools import tiny_data
from tools.browser import CHECKOUT
from tools.programs import NODE_ENVIRONMENT, NODE_PYTHON, SWIFT, swift_python

EXTRA = NODE_ENVIRONMENT / "extra"
PROGRAM = Path(__file__).with_name("same_text.py")
SWIFT_PROGRAM = Path(__file__).with_name("swift_same_text.py")
MODELS = yaml.safe_load((CHECKOUT / "presets" / "models.yaml").read_text())
TEMPLATES = sorted({model["template"] for model in MODELS.values() if model.get("template")} | {tiny_model.TEMPLATE})


def texts(folder: Path, *templates: str, path: str = "") -> dict[str, list[dict[str, Any]]]:
    command = [str(NODE_PYTHON), "-W", "ignore", str(PROGRAM), str(folder), *templates]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": f"{CHECKOUT}:{path}"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    skip_without_node_environment()
    folder = tmp_path_factory.mktemp("same")
    subprocess.run([NODE_PYTHON, "-W", "ignore", tiny_model.__file__, folder], check=True, capture_output=True)
    return texts(folder / tiny_model.MODEL_FOLDER, *TEMPLATES)


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("thinks", [True, False])
def test_a_served_prompt_is_what_was_trained_before_the_answer(template, thinks, rendered):
    one = rendered[template][0 if thinks else 1]
    assert one["served"] == one["trained"]
    assert (one["is_prompt_trained"], one["is_answer_trained"]) == (False, True)
    assert "七。" in one["answer"]


UNREADABLE = {"deepseek", "mistral_2512", "qwen2_5_omni", "qwen3_omni"}
"""Templates that need tokens or a processor that the tiny model lacks."""
ALWAYS_THINKS = {"minimax_m2"}
"""Its prompt opens a thought, which the trained answers here do not have."""


@pytest.mark.engines
def test_ms_swift_serves_what_it_trained_before_the_answer(tmp_path):
    skip_without_node_environment()
    if not swift_python():
        pytest.skip(f"no ms-swift here: `make engines` installs it, or {SWIFT} names a Python that has it")
    known = {swift_model(target_of(job(name, engine="swift-ddp"))) for name in MODELS if not MODELS[name].get("audio")}
    names = sorted({model.template for model in known if model} - UNREADABLE - ALWAYS_THINKS)
    preserves = str(swift_inference_keys(job(engine="swift-ddp"))["preserve_thinking"])
    subprocess.run([NODE_PYTHON, "-W", "ignore", tiny_model.__file__, tmp_path], check=True, capture_output=True)
    command = [swift_python(), "-W", "ignore", SWIFT_PROGRAM, tmp_path / tiny_model.MODEL_FOLDER, preserves, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rendered = json.loads(done.stdout.splitlines()[-1])
    assert len(rendered) > 20
    assert [name for name, one in rendered.items() if one["served"] != one["trained"]] == []
    assert [name for name, one in rendered.items() if "七。" not in one["answer"] or not one["is_answer_trained"]] == []


@pytest.mark.engines
def test_images_are_served_as_they_were_trained(tmp_path):
    skip_without_node_environment()
    if not (EXTRA / ".ready").exists():
        pytest.skip("no .venv-node/extra: run `make engines`")
    environment = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{EXTRA}", "HF_HUB_OFFLINE": "1"}
    for program, *arguments in ((tiny_model.__file__, tmp_path), (tiny_data.__file__, tmp_path, "vision")):
        subprocess.run([NODE_PYTHON, "-W", "ignore", program, *arguments], check=True, env=environment, timeout=600)
    [pair] = texts(tmp_path / tiny_data.MODELS["vision"], tiny_data.VISION_TEMPLATE, path=str(EXTRA)).values()
    assert len(pair) == 2
    for one in pair:
        assert one["served"] == one["trained"]
        assert one["served"].count("<|image_pad|>") > 1
