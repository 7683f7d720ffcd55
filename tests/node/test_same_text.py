"""Training and serving render the same text for the same conversation, by LLaMA-Factory's own code."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.demo import tiny_model
from tests.nodes import skip_without_node_environment
from tools import tiny_data
from tools.browser import CHECKOUT
from tools.programs import NODE_ENVIRONMENT, NODE_PYTHON

EXTRA = NODE_ENVIRONMENT / "extra"
PROGRAM = Path(__file__).with_name("same_text.py")
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
