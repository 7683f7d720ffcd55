"""Megatron-Core's attention over chosen keys: what it saves, needs and computes.

benchmarks/chosen_keys.py counted the figures on the modules of megatron-core 0.19.2."""

from dataclasses import replace

import pytest

from backend.estimate import estimate
from backend.estimate.memory.megatron_adapters import Adapters, adapter_counts
from backend.estimate.memory.megatron_layer import Run, layer_cost
from backend.estimate.memory.megatron_sparse import core_work, keys_of
from backend.estimate.memory.stage import Trained
from backend.estimate.model.chosen_keys import chosen_keys_attention
from backend.estimate.model.flops import layer_flops
from backend.estimate.model.layers import LayerKind, operators_of
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.estimate.plan import Plan, plan_of_model
from backend.estimate.time.kernels import layer_kernels
from backend.job.attention import attention_kind
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.model.attention_shape import Indexer, Mla
from backend.job.model.operators import ChosenKeys
from backend.job.presets import resolve_gpu
from backend.job.problems import ProblemsError
from backend.job.traits import TRAITS
from tests.estimate.cases import DEEPSEEK_V32, GLM_5, job

SAVED = {
    (4, 1, 1, 128): 1245696,
    (8, 1, 1, 256): 8046592,
    (8, 2, 1, 128): 1190400,
    (8, 2, 1, 256): 4076544,
    (8, 1, 2, 128): 1191424,
    (8, 2, 2, 128): 618752,
}
"""(heads, TP, CP, tokens of a sequence): bytes"""
SQUARES = {(4, 2): (113, 120, 493, 628), (8, 2): (221, 240, 853, 1256), (4, 16): (128, 120, 829, 628)}
"""(heads, heads of the indexer): bytes at the peak of forward and of backward, and bytes moved in both"""
FLOPS = {4: (46661632, 62914560), 8: (70778880, 111149056)}
"""Heads: operations of 128 tokens, forward and backward"""
GLM_SHARED = {**GLM_5, "index_topk_freq": 4}


def attention(heads, index_heads=8, **indexer):
    mla = Mla(
        heads=heads, q_lora=64, kv_lora=32, nope_dim=32, rope_dim=16, value_dim=32, masked=True,
        indexer=Indexer(heads=index_heads, head_dim=32, **indexer),
    )  # fmt: skip
    return LayerKind(name="attention", hidden=256, operators=chosen_keys_attention(mla, 256))


def plan(tokens, **values):
    return Plan(sequence_length=tokens, micro_batches=1, sequence_parallel=values.get("tensor", 1) > 1, **values)


def cost(kind, made):
    return layer_cost(kind, made, replace(TRAITS["swift-megatron"].memory), Run(trained=Trained()))


@pytest.mark.parametrize(("heads", "tensor", "context", "tokens"), SAVED)
def test_saved_bytes_are_those_of_the_real_module(heads, tensor, context, tokens):
    made = plan(tokens, tensor=tensor, context=context)
    # The output of the norm before the attention is counted with the norm.
    entering = 2 * 256 * made.tokens * made.whole_share
    assert cost(attention(heads), made).saved + entering == SAVED[heads, tensor, context, tokens]


@pytest.mark.parametrize(("heads", "index_heads"), SQUARES)
def test_work_and_traffic_for_each_query_and_key_are_those_of_the_real_module(heads, index_heads):
    most, back, moved, moved_back = SQUARES[heads, index_heads]
    made, kernels = plan(1), layer_kernels(attention(heads, index_heads), fused=True)
    kind = attention(heads, index_heads)
    [core] = operators_of(kind, ChosenKeys)
    assert core_work(core, kind, made).bytes == max(most, back) - 13 * heads
    assert kernels.square_moved + kernels.pair_moved == moved
    assert kernels.square_moved_back == moved_back


@pytest.mark.parametrize("heads", FLOPS)
def test_operations_are_those_that_torch_counts(heads):
    flops = layer_flops(attention(heads))
    backward = flops.backward(128, weights_trained=True, inputs_need=True)
    assert (128 * flops.forward(128), 128 * backward) == FLOPS[heads]


def test_megatrons_form_has_as_many_parameters():
    for keys in (DEEPSEEK_V32, GLM_SHARED):
        shape = parse_model(keys)
        assert model_parameters(model_layers(shape, megatron=True)) == model_parameters(model_layers(shape))


def test_sequences_of_a_micro_batch_are_keys_of_each_other_unless_they_are_padded():
    two = plan(4096, micro_batch=2, context=2)
    assert keys_of(two) == 8192
    assert keys_of(replace(two, concatenated=False)) == 4096


@pytest.mark.parametrize(
    ("extra", "concatenated"),
    [({}, True), ({"padding_free": False}, False), ({"attention_backend": "unfused"}, False),
     ({"attention_backend": "local"}, True)],
)  # fmt: skip
def test_a_plan_says_whether_ms_swift_joins_the_sequences_of_a_micro_batch(extra, concatenated):
    """ms-swift 4.6.0 switches padding_free off for `unfused` alone (megatron/model/utils.py _check_padding_free)."""
    the_job, shape = job(engine="swift-megatron", extra=extra), parse_model(GLM_5)
    gpu = resolve_gpu(the_job.cluster)
    assert plan_of_model(the_job, shape, attention=attention_kind(the_job, shape, gpu)).concatenated == concatenated


def test_padding_keeps_scores_within_a_sequence():
    values = {"parallel.tensor": 8, "parallel.expert": 32, "cluster.nodes": 32, "training.micro_batch_size": 4}
    joined, padded = (
        estimate(replace(job(values, engine="swift-megatron", extra=extra), model=Model(hf_config=dict(GLM_5))))
        for extra in ({}, {"padding_free": False})
    )
    assert padded.peak_gib < 0.7 * joined.peak_gib
    assert padded.iteration_s < 0.9 * joined.iteration_s


def test_a_checkpoint_of_the_core_keeps_its_inputs_and_restores_the_scores():
    kinds = [cost(attention(8), plan(512, recompute_modules=modules)) for modules in ((), ("core_attn",))]
    scores = 13 * 8 * 512 * 512
    assert kinds[0].saved - kinds[1].saved > scores
    assert kinds[1].moment.activations > scores


def test_shared_choices_stay_under_full_recompute():
    made = plan(512, recompute="full")
    alone, shared = (cost(attention(8, chosen=64, is_shared=flag), made).held for flag in (False, True))
    assert (alone, shared) == (0, 8 * 64 * 512)


def test_adapters_that_are_never_computed_have_weights_but_keep_nothing():
    kind = attention(8)
    every, idle = Adapters(rank=4), Adapters(rank=4, targets="linear_kv_up_proj,linear_wq_b,linear_wk")
    assert adapter_counts(kind, idle).total == 4 * (32 + 8 * 64 + 64 + 8 * 32 + 256 + 32)
    assert adapter_counts(kind, every).total > adapter_counts(kind, idle).total
    memory = TRAITS["swift-megatron"].memory
    frozen = layer_cost(kind, plan(64), memory, Run(trained=Trained(), adapters=Adapters(rank=4, targets="none")))
    adapted = layer_cost(kind, plan(64), memory, Run(trained=Trained(), adapters=idle))
    assert adapted.saved == frozen.saved


@pytest.mark.parametrize("keys", [DEEPSEEK_V32, GLM_5, GLM_SHARED])
def test_memory_and_time_are_estimated(keys):
    values = {"parallel.tensor": 8, "parallel.expert": 32, "training.cutoff_len": 4096, "cluster.nodes": 32}
    made = replace(job(values, engine="swift-megatron"), model=Model(hf_config=dict(keys)))
    result = estimate(made)
    assert result.iteration_s
    assert result.stages


def test_a_trained_indexer_is_not_estimated():
    made = replace(
        job({"extra": {"dsa_indexer_loss_coeff": 0.001}}, engine="swift-megatron"),
        model=Model(hf_config=dict(DEEPSEEK_V32)),
    )
    with pytest.raises(ProblemsError) as raised:
        estimate(made)
    [problem] = raised.value.problems
    assert (problem.code, problem.field) == ("estimate_not_modelled", "extra")
