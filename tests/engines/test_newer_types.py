"""Types that the node's transformers does not have, built by the transformers of requirements/newer.in."""

from functools import partial

import pytest

from backend.estimate.memory.stage import Trained
from backend.estimate.model.adapters import adapter_parameters
from backend.estimate.model.model_layers import model_layers
from backend.job.model import parse_model
from backend.job.model.newer import NEWER, NEWER_TOWERS
from backend.job.model.patch_gradients import WITH_PATCH_GRADIENTS
from backend.job.model.vision import TOWERS
from backend.job.presets import models
from benchmarks.small_models import NEWER_MODELS
from tests.estimate.printed import printed_by
from tests.nodes import needs_node_environment
from tools.programs import NEWER_PYTHON
from tools.write_models import read_newer_types

needs_newer = pytest.mark.skipif(not NEWER_PYTHON.exists(), reason="no later transformers: run `make engines`")
pytestmark = [pytest.mark.e2e, pytest.mark.engines, needs_node_environment, needs_newer]


printed = partial(printed_by, python=NEWER_PYTHON)


def test_newer_types_have_as_many_parameters_as_transformers_builds() -> None:
    measured = printed("benchmarks.families", "--newer")
    assert {name: each["theirs"] for name, each in measured["types"].items() if each["status"] == "wrong"} == {}
    kept = read_newer_types()
    assert measured["transformers"] == kept["transformers"]
    assert measured["types"] == kept["types"]


def test_every_linear_module_of_a_newer_type_has_an_adapter() -> None:
    counted = {
        name: adapter_parameters(model_layers(parse_model(keys)), 8, "all", Trained())
        for name, keys in NEWER_MODELS.items()
    }
    built = printed("benchmarks.real_modules", "adapters")
    assert {name: built[name] for name in counted} == counted


def test_the_operations_of_small_models_are_those_that_torch_counts() -> None:
    counted = printed("benchmarks.flops_counted", "--newer", "--json")
    assert {name for name, (torchs, ours) in counted.items() if abs(ours / torchs - 1) > 0.001} == {
        "glm5_next_text",
        "kimi_linear",
        "qwen4_exp_text",
    }


def test_the_step_peak_of_a_small_model_is_near_that_of_torchs_tracker() -> None:
    [[torchs, ours], *_] = printed("benchmarks.step_peak", "--families", "laguna", "--json").values()
    assert ours == pytest.approx(torchs, rel=0.05)


def test_presets_of_newer_types_have_as_many_parameters_as_their_hugging_face_class() -> None:
    newer = {*NEWER, *NEWER_TOWERS}
    published = {key: each.parameters for key, each in models().items() if each.hf_config["model_type"] in newer}
    assert printed("benchmarks.real_modules", "hugging-face") == published


def test_a_later_transformers_lets_gradients_flow_to_the_patches_of_the_newer_types_that_are_listed() -> None:
    assert printed("benchmarks.real_modules", "patches-need-gradients") == [
        name for name in TOWERS if name in NEWER_TOWERS and name in WITH_PATCH_GRADIENTS
    ]
