"""Muse Glimmer on ms-swift's Megatron: what its attention saves, and which parts of the memory it adds.

benchmarks/separate_gate.py counted the figures on the module of mcore-bridge 1.6.5 with megatron-core 0.16.1."""

from dataclasses import replace

import pytest

from backend.estimate import estimate
from backend.estimate.memory.megatron import pipeline_memory
from backend.estimate.memory.megatron_layer import Run, layer_cost
from backend.estimate.memory.stage import Trained
from backend.estimate.model.attention import full_attention
from backend.estimate.model.layers import LayerKind
from backend.estimate.model.model_layers import model_layers
from backend.estimate.plan import Plan
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.model.attention_shape import FullAttention
from backend.job.model.operators import Norm
from backend.job.traits import TRAITS
from benchmarks.small_models import TOWER_MODELS
from tests.estimate.cases import job
from tests.estimate.printed import printed_by
from tools.programs import swift_python

HIDDEN, WIDTH = 256, 32
SAVED = {(8, 2, 1, 128): 1052672, (8, 2, 2, 128): 526336, (8, 4, 2, 256): 1118208, (4, 4, 1, 256): 1708032}
"""(heads, heads of keys, TP, tokens of a sequence): bytes"""


@pytest.mark.parametrize(("heads", "key_heads", "tensor", "tokens"), SAVED)
def test_saved_bytes_are_those_of_the_real_module(heads, key_heads, tensor, tokens):
    attention = FullAttention(heads=heads, kv_heads=key_heads, head_dim=WIDTH, qk_norm="bare", gate="own")
    norm = Norm(width=HIDDEN, parameters=HIDDEN, in_fp32=True)
    operators = (norm, *full_attention(attention, HIDDEN, in_fp32=True, megatron=True))
    kind = LayerKind(name="attention", hidden=HIDDEN, operators=operators)
    plan = Plan(sequence_length=tokens, micro_batches=1, tensor=tensor, sequence_parallel=tensor > 1)
    cost = layer_cost(kind, plan, TRAITS["swift-megatron"].memory, Run(trained=Trained()))
    assert cost.saved == SAVED[heads, key_heads, tensor, tokens]


def muse(**values):
    return replace(job(engine="swift-megatron", **values), model=Model(hf_config=TOWER_MODELS["muse_glimmer"]))


def test_the_norm_of_the_embedding_saves_an_fp32_copy_on_the_first_stage():
    plain = replace(parse_model(TOWER_MODELS["muse_glimmer"]), bare_embedding_norm=False)
    made = Plan(sequence_length=512, micro_batches=4, pipeline=2, context=2)
    stages = [
        pipeline_memory(model_layers(shape, megatron=True), made, TRAITS["swift-megatron"].memory, Trained())
        for shape in (parse_model(TOWER_MODELS["muse_glimmer"]), plain)
    ]
    added = [with_norm.activations - without.activations for with_norm, without in zip(*stages, strict=True)]
    # Two micro-batches are in flight on the first of two stages.
    assert added == [2 * 4 * plain.hidden * 512, 0]


def test_megatron_has_an_estimate_of_muse_glimmer():
    assert estimate(muse()).peak_gib > 0


@pytest.mark.engines
@pytest.mark.skipif(swift_python() is None, reason="needs ms-swift")
def test_the_real_module_still_saves_these_bytes():
    printed = printed_by("benchmarks.separate_gate")
    assert printed == {" ".join(map(str, case)): size for case, size in SAVED.items()}
