"""presets/swift_models.yaml against ms-swift's registry, and that registry's names of parts against transformers."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tools.programs import swift_python
from tools.write_swift_models import FILE, ask_models, kept

PYTHON = swift_python()
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.engines,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PYTHON is None, reason="no ms-swift"),
]

OWN_CODE = {"ernie_vl", "paddle_ocr"}
"""Types of which ms-swift loads the folder's code, whose parts have other names."""
WITHOUT_VISION = {"gemma4"}
"""Types whose own configuration has no tower."""
DESCRIBED = {
    "gemma3_vision", "glm4v", "glm4v_moe", "glm_ocr", "internvl", "llama3_2_vision", "llama4", "llava_llama3_hf",
    "llava_next_qwen_hf", "llava_next_video_hf", "llava_onevision_hf", "mistral3", "paddleocr_vl", "paligemma",
    "qwen2_audio", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe",
}  # fmt: skip
"""Types whose towers the estimate describes, and which the class's own configuration builds."""


def test_the_file_has_what_ms_swift_registers() -> None:
    assert yaml.safe_load(FILE.read_text()) == kept(ask_models(str(PYTHON)))


def test_the_freeze_switches_name_parts_that_the_classes_have() -> None:
    program = Path(__file__).with_name("swift_parts.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [str(PYTHON), "-W", "ignore", program]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    missing = json.loads(result.stdout.splitlines()[-1])
    assert set(missing) >= DESCRIBED
    assert {kind for kind in DESCRIBED if missing[kind]} == set()
    others = {kind for kind in missing if missing[kind]} - OWN_CODE - WITHOUT_VISION
    # Models that no estimate describes.
    assert others <= {"florence", "glm_edge_v"}
