"""Gemma 4 with embeddings of every layer and shared keys (E2B, E4B) on ms-swift's Megatron.

benchmarks/layer_inputs.py counted the figures on the modules of mcore-bridge 1.6.5 with megatron-core 0.16.1."""

from dataclasses import replace

import pytest

from backend.estimate import estimate
from backend.estimate.memory.megatron import pipeline_memory
from backend.estimate.memory.stage import Trained, rank_parameters, stages
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.estimate.plan import Plan
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.rules import check
from backend.job.traits import TRAITS
from benchmarks.small_models import GEMMA_4_WITH_LAYER_INPUTS
from tests.estimate.cases import job
from tests.estimate.printed import printed_by
from tools.programs import swift_python

MEMORY = TRAITS["swift-megatron"].memory
SHAPE = parse_model(GEMMA_4_WITH_LAYER_INPUTS)
LAYERS = replace(model_layers(SHAPE, megatron=True), vision=None)
TOKENS = 64
PARAMETERS = {
    "1 0": 1821408, "1 1": 2001504, "1 2": 2263904, "2 0": 912096, "2 1": 1002080, "2 2": 1133408, "4 0": 457440,
    "4 1": 502368, "4 2": 568160,
}  # fmt: skip
SAVED = {"1 0": 1675264, "1 1": 2265088, "2 0": 849920, "2 1": 1169408, "4 0": 467968, "4 1": 609280}
"""Both: "TP, stage of three" -> the count."""


def plan_of(name: str) -> tuple[Plan, int]:
    tensor, stage = map(int, name.split())
    parallel = tensor > 1
    return Plan(sequence_length=TOKENS, micro_batches=1, pipeline=3, tensor=tensor, sequence_parallel=parallel), stage


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_a_rank_are_those_of_the_real_model(name):
    plan, stage = plan_of(name)
    counted = rank_parameters(LAYERS, plan, stages(LAYERS, plan)[stage], Trained(), MEMORY.vocabulary_padding)
    assert counted.dense == PARAMETERS[name]


@pytest.mark.parametrize("name", SAVED)
def test_saved_bytes_of_a_stage_are_those_of_the_real_model(name):
    plan, stage = plan_of(name)
    assert pipeline_memory(LAYERS, plan, MEMORY, Trained())[stage].activations == SAVED[name]


def test_both_forms_have_the_same_parameters():
    assert model_parameters(model_layers(SHAPE, megatron=True)) == model_parameters(model_layers(SHAPE))


def small(**values):
    return replace(job(engine="swift-megatron", **values), model=Model(hf_config=GEMMA_4_WITH_LAYER_INPUTS))


def test_megatron_has_an_estimate_of_these_models():
    assert estimate(small()).peak_gib > 0


@pytest.mark.parametrize(("recompute", "is_refused"), [("full", True), ("selective", False), ("none", False)])
def test_full_recompute_is_refused_because_it_loses_gradients(recompute, is_refused):
    codes = [problem.code for problem in check(small(**{"parallel.recompute": recompute}))]
    assert ("shared_keys_recomputed" in codes) is is_refused


@pytest.mark.engines
@pytest.mark.skipif(swift_python() is None, reason="needs ms-swift")
def test_the_real_model_still_has_these_figures():
    printed = printed_by("benchmarks.layer_inputs")
    # The first two layers project the keys that all others read.
    assert printed == {"parameters": PARAMETERS, "saved": SAVED, "lost": [True, True, False, False, False, False]}
