"""Experts that transformers computes for every token cost what they compute, and Megatron's only what was chosen."""

from backend.estimate.memory.eager_activations import EagerForm, eager_bytes
from backend.estimate.model.layers import operators_of
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.model import parse_model
from backend.job.model.operators import Linear
from benchmarks.small_models import SMALL_MODELS


def test_llama_4_computes_all_experts_in_transformers_and_the_chosen_one_in_megatron() -> None:
    shape = parse_model(SMALL_MODELS["llama4_text"])
    dense, routed = model_layers(shape), model_layers(shape, megatron=True)
    active = [
        {each.active for each in operators_of(layers.kinds[1], Linear) if each.share == "expert"}
        for layers in (dense, routed)
    ]
    assert active == [{4}, {1}]
    assert model_parameters(dense) == model_parameters(routed)
    form = EagerForm()
    assert eager_bytes(dense.kinds[1], form) > eager_bytes(routed.kinds[1], form)


def test_experts_that_are_routed_in_transformers_are_the_same_for_both() -> None:
    shape = parse_model(SMALL_MODELS["mixtral"])
    dense, routed = model_layers(shape), model_layers(shape, megatron=True)
    assert [kind.operators for kind in dense.kinds] == [kind.operators for kind in routed.kinds]
