"""Types that the node's transformers does not have, built by the transformers of requirements/newer.in."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backend.job.model.newer import NEWER, NEWER_TOWERS
from backend.job.model.patch_gradients import WITH_PATCH_GRADIENTS
from backend.job.model.vision import TOWERS
from backend.job.presets import models
from tests.nodes import needs_node_environment
from tools.programs import NEWER_PYTHON
from tools.write_models import read_newer_types

needs_newer = pytest.mark.skipif(not NEWER_PYTHON.exists(), reason="no later transformers: run `make engines`")
pytestmark = [pytest.mark.e2e, pytest.mark.engines, needs_node_environment, needs_newer]


def printed(*arguments: str) -> Any:
    command = [NEWER_PYTHON, "-W", "ignore", "-m", *arguments]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def test_newer_types_have_as_many_parameters_as_transformers_builds() -> None:
    measured = printed("benchmarks.families", "--newer")
    assert {name: each["theirs"] for name, each in measured["types"].items() if each["status"] == "wrong"} == {}
    kept = read_newer_types()
    assert measured["transformers"] == kept["transformers"]
    assert measured["types"] == kept["types"]


def test_presets_of_newer_types_have_as_many_parameters_as_their_hugging_face_class() -> None:
    newer = {*NEWER, *NEWER_TOWERS}
    published = {key: each.parameters for key, each in models().items() if each.hf_config["model_type"] in newer}
    assert printed("benchmarks.real_modules", "hugging-face") == published


def test_a_later_transformers_lets_gradients_flow_to_the_patches_of_the_newer_types_that_are_listed() -> None:
    assert printed("benchmarks.real_modules", "patches-need-gradients") == [
        name for name in TOWERS if name in NEWER_TOWERS and name in WITH_PATCH_GRADIENTS
    ]
