"""Ling 2.5 on ms-swift's Megatron.

benchmarks/lightning_attention.py counted the figures on the modules of mcore-bridge 1.6.5 with megatron-core 0.16.1."""

from dataclasses import replace

import pytest

from backend.estimate import estimate
from backend.estimate.memory.megatron_layer import Run, layer_cost
from backend.estimate.memory.stage import Trained, rank_parameters, stages
from backend.estimate.model.model_layers import model_layers
from backend.estimate.plan import Plan
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.problems import ProblemsError
from backend.job.traits import TRAITS
from benchmarks.small_models import LING_2_5
from tests.estimate.cases import job
from tests.estimate.printed import printed_by
from tools.programs import swift_python

MEMORY = TRAITS["swift-megatron"].memory
LAYERS = model_layers(parse_model(LING_2_5), megatron=True)
TOKENS = 64
PARAMETERS = {
    "1 1 1 0": 6281472, "2 1 1 0": 3954944, "2 2 2 0": 1530880, "2 2 2 1": 1637632, "4 2 4 0": 777216,
    "4 2 4 1": 834816,
}  # fmt: skip
"""TP, PP, EP and stage -> parameters of a rank, with its experts."""
SAVED = {"1": 754688, "2": 426496, "4": 262400}
"""TP -> bytes"""


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_a_rank_are_those_of_the_real_model(name):
    tensor, pipeline, expert, stage = map(int, name.split())
    plan = Plan(sequence_length=TOKENS, micro_batches=1, tensor=tensor, pipeline=pipeline, expert=expert)
    counted = rank_parameters(LAYERS, plan, stages(LAYERS, plan)[stage], Trained(), MEMORY.vocabulary_padding)
    assert counted.dense + counted.expert == PARAMETERS[name]


@pytest.mark.parametrize("name", SAVED)
def test_saved_bytes_of_a_layer_are_those_of_the_real_module(name):
    tensor = int(name)
    plan = Plan(sequence_length=TOKENS, micro_batches=1, tensor=tensor, sequence_parallel=tensor > 1)
    assert layer_cost(LAYERS.kinds[0], plan, MEMORY, Run(trained=Trained())).saved == SAVED[name]


def test_only_megatron_has_an_estimate():
    made = replace(job(engine="swift-megatron"), model=Model(hf_config=LING_2_5))
    assert estimate(made).peak_gib > 0
    with pytest.raises(ProblemsError, match="estimate_not_modelled"):
        estimate(replace(job(engine="swift-zero3"), model=made.model))


@pytest.mark.engines
@pytest.mark.skipif(swift_python() is None, reason="needs ms-swift")
def test_the_real_model_still_has_these_figures():
    printed = printed_by("benchmarks.lightning_attention")
    assert printed == {"parameters": PARAMETERS, "saved": SAVED}
