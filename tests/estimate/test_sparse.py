"""Sparse attention: an indexer without gradients chooses the keys, and a mask as large as the scores says which."""

from dataclasses import replace
from itertools import pairwise

import pytest

from backend.estimate import estimate
from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.adapters import adapter_parameters
from backend.estimate.model.flops import layer_flops
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.estimate.plan import Plan
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.problems import ProblemsError
from backend.job.traits import TRAITS
from benchmarks.small_models import NEWER_MODELS, SMALL_MODELS
from tests.estimate.cases import job

GLM, DEEPSEEK = SMALL_MODELS["glm_moe_dsa"], NEWER_MODELS["deepseek_v32"]
MODELS = {"deepseek_v32": DEEPSEEK, "glm_moe_dsa": GLM}
INDEXER = 64 * 8 * 32 + 256 * 32 + 2 * 32 + 256 * 8
"""Weights of the small models' indexer: queries from 64, keys from 256, a LayerNorm, and weights of 8 heads."""


def peak(keys, **values):
    memory = TRAITS["llamafactory-ddp"].memory
    assert memory is not None
    plan = Plan(**{"sequence_length": 1024, "micro_batch": 2, "micro_batches": 1, "recompute": "full", **values})
    tuning = Tuning(trained=Trained(), method="lora", lora_targets="o_proj")
    return data_parallel_memory(model_layers(parse_model(keys)), plan, memory, tuning).peak


def test_a_shared_layer_has_no_indexer():
    shared = {**GLM, "indexer_types": ["full", "full", "full", "shared"]}
    sizes = [model_parameters(model_layers(parse_model(keys))) for keys in (shared, GLM)]
    assert sizes[1] - sizes[0] == INDEXER


@pytest.mark.parametrize(
    ("keys", "indexers"),
    [
        ({}, 4),
        ({"index_topk_freq": 3}, 2),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 4}, 4),
        ({"index_topk_pattern": "FSSF"}, 2),
        ({"index_topk_pattern": ["full", "shared", "shared", "shared"]}, 1),
    ],
)
def test_the_layers_with_an_indexer_follow_from_a_list_a_pattern_or_a_period(keys, indexers):
    shape = parse_model({**GLM, "indexer_types": None, **keys})
    assert sum(bool(shape.kinds[kind].attention.indexer) for kind in shape.order) == indexers


def test_an_unknown_letter_of_the_pattern_is_refused():
    with pytest.raises(ProblemsError, match="bad_model_key"):
        parse_model({**GLM, "indexer_types": None, "index_topk_pattern": "FXFF"})


def test_an_indexer_needs_the_low_rank_query():
    with pytest.raises(ProblemsError, match="q_lora_rank"):
        parse_model({**DEEPSEEK, "q_lora_rank": None})


def test_an_indexer_has_no_backward_pass():
    [sparse, plain] = [
        layer_flops(model_layers(parse_model({**DEEPSEEK, **keys})).kinds[0])
        for keys in ({}, {"model_type": "deepseek_v3"})
    ]
    assert sparse.forward(512) > plain.forward(512)
    assert sparse.backward(512, weights_trained=True, inputs_need=True) == plain.backward(
        512, weights_trained=True, inputs_need=True
    )


def test_the_memory_of_the_scores_grows_with_the_square_of_the_sequence():
    peaks = [peak(DEEPSEEK, micro_batch=1, sequence_length=length) for length in (4096, 8192, 12288)]
    first, second = (later - earlier for earlier, later in pairwise(peaks))
    assert second > 1.5 * first


def test_several_sequences_make_a_copy_of_the_keys_for_every_query():
    # transformers 5.19 only; GLM-5 is described as 5.6 computes it.
    more = {name: peak(keys, micro_batch=2) - 2 * peak(keys, micro_batch=1) for name, keys in MODELS.items()}
    assert more["deepseek_v32"] > more["glm_moe_dsa"] + 2 * 1024 * 1024 * 32


def test_all_names_the_linear_layers_of_the_indexer_too():
    layers = model_layers(parse_model(DEEPSEEK))
    sizes = [adapter_parameters(layers, 8, targets, Trained()) for targets in ("wq_b,wk,weights_proj", "all", "o_proj")]
    assert sizes[0] == 4 * 8 * (64 + 8 * 32 + 256 + 32 + 256 + 8)
    assert sizes[1] > sizes[0] + sizes[2]


def test_gated_sparse_attention_is_not_estimated_on_megatron():
    made = replace(job(engine="swift-megatron"), model=Model(hf_config=NEWER_MODELS["axk2"]))
    with pytest.raises(ProblemsError) as raised:
        estimate(made)
    [problem] = raised.value.problems
    assert (problem.code, problem.values["what"]) == ("estimate_not_modelled", "axk2, swift-megatron")
