"""Types that transformers 5.6 does not have: the parameters of the default configuration of a later transformers.

benchmarks/data/newer_types.json has the configurations and what transformers builds from them;
tests/engines/test_newer_types.py asks transformers again.
"""

import pytest

from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.model import parse_model
from backend.job.model.newer import NEWER, NEWER_TOWERS
from benchmarks.small_models import NEWER_MODELS
from tools.write_models import read_newer_types

TYPES = {name: each for name, each in read_newer_types()["types"].items() if each["status"] == "exact"}


@pytest.mark.parametrize("name", TYPES)
def test_a_newer_type_has_the_parameters_that_transformers_builds(name):
    assert (
        model_parameters(model_layers(parse_model(TYPES[name]["config"] | {"model_type": name})))
        == TYPES[name]["theirs"]
    )


def test_each_newer_family_was_compared():
    compared = {name.removesuffix("_text") for name in TYPES}
    assert {*NEWER, *NEWER_TOWERS} <= compared
    assert NEWER_MODELS.keys() <= TYPES.keys()


def test_the_operations_and_the_step_peak_of_small_models_are_near_those_that_torch_counts():
    measured = read_newer_types()
    assert all(abs(error) < 0.05 for error in measured["flops"].values())
    assert all(abs(error) < 0.1 for errors in measured["peaks"].values() for error in errors.values())
