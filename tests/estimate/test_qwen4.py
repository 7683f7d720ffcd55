"""Qwen4: residual streams with gated means, attention to chosen blocks of keys, and embeddings of n-grams."""

from dataclasses import replace

import pytest

from backend.estimate import estimate
from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.adapters import adapter_parameters
from backend.estimate.model.flops import layer_flops
from backend.estimate.model.layers import table_weights
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.estimate.plan import Plan
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.problems import ProblemsError
from backend.job.traits import TRAITS
from benchmarks.small_models import NEWER_MODELS
from tests.estimate.cases import job

SMALL = NEWER_MODELS["qwen4_exp_text"]
PLAIN = {**SMALL, "ple_layer_ids": []}


def peak(keys):
    memory = TRAITS["llamafactory-ddp"].memory
    assert memory is not None
    plan = Plan(sequence_length=256, micro_batch=2, micro_batches=2, recompute="full")
    return data_parallel_memory(model_layers(parse_model(keys)), plan, memory, Tuning(trained=Trained())).peak


def test_the_small_model_has_the_parameters_that_transformers_builds():
    # Counted on Qwen4ExpForCausalLM of transformers 5.19.0, and on its adapters by peft.
    layers = model_layers(parse_model(SMALL))
    assert model_parameters(layers) == 8_849_784
    assert adapter_parameters(layers, 8, "all", Trained()) == 349_664


def test_each_head_of_an_n_gram_has_a_prime_number_of_rows():
    # The four primes from 1000 on, padded to 128; those of the second layer with n-grams follow.
    heads = 1009 + 1013 + 1019 + 1021, 1031 + 1033 + 1039 + 1049
    layers = model_layers(parse_model({**SMALL, "ple_layer_ids": [1, 2]}))
    tables = [table_weights(layers.kinds[layers.order[index]]) for index in range(3)]
    assert tables == [-(-heads[0] // 128) * 128 * 16, -(-heads[1] // 128) * 128 * 16, 0]


def test_autocast_makes_no_copy_of_a_table_that_is_looked_up():
    larger = {**SMALL, "ngram_vocab_size_base": 100_000}
    rows = table_weights(model_layers(parse_model(larger)).kinds[1]) - table_weights(
        model_layers(parse_model(SMALL)).kinds[1]
    )
    # Weight, two moments and gradient of 4 bytes each, and the new gradient with its 16-bit form.
    assert peak(larger) - peak(SMALL) == pytest.approx((16 + 6) * rows, rel=0.05)


def test_layers_of_the_files_that_are_called_full_have_an_indexer_too():
    named = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
    later = [*named[:3], "indexed_attention"]
    assert parse_model({**SMALL, "layer_types": named}) == parse_model({**SMALL, "layer_types": later})


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"indexer_kv_heads": 2}, "indexer_kv_heads"),
        ({"indexer_n_heads": None}, "indexer_n_heads"),
        ({"ple_embed_dim": 63}, "ple_embed_dim"),
        ({"heads_per_ngram": 10**6}, "heads_per_ngram"),
        ({"ngram_vocab_size_base": 10**9}, "ngram_vocab_size_base"),
    ],
)
def test_a_config_that_the_layers_do_not_follow_from_is_refused(keys, key):
    with pytest.raises(ProblemsError) as raised:
        parse_model({**SMALL, **keys})
    assert raised.value.problems[0].values["key"] == key


def test_the_indexer_reads_the_mean_of_a_block_and_has_no_backward_pass():
    [small, large] = [
        layer_flops(model_layers(parse_model({**PLAIN, "indexer_compress_ratio": block})).kinds[-1]) for block in (4, 8)
    ]
    assert small.index == 2 * large.index
    assert small.backward(256, weights_trained=True, inputs_need=True) == large.backward(
        256, weights_trained=True, inputs_need=True
    )


def test_a_loop_over_queries_takes_longer_than_all_else():
    made = replace(job(engine="swift-zero3"), model=Model(hf_config=SMALL))
    plain = {**SMALL, "layer_types": ["linear_attention"] * 4}
    other = replace(made, model=Model(hf_config=plain))
    looped, linear = estimate(made).iteration_s, estimate(other).iteration_s
    assert looped is not None
    assert linear is not None
    assert looped > 2 * linear


def test_megatrons_layers_are_not_estimated():
    with pytest.raises(ProblemsError, match="estimate_not_modelled"):
        estimate(replace(job(engine="swift-megatron"), model=Model(hf_config={**SMALL, "model_type": "qwen4_exp"})))
