"""A config.json is read in all its forms. What cannot be read is refused by name."""

import pytest

from backend.job.model import parse_model
from backend.job.model.attention_shape import FullAttention
from backend.job.model.linear_shape import GatedDeltaNet
from backend.job.model.shape import Experts
from backend.job.presets import models
from backend.job.problems import ProblemsError

PLAIN = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256,
}  # fmt: skip


def refusal(config):
    with pytest.raises(ProblemsError) as raised:
        parse_model(config)
    [problem] = raised.value.problems
    assert problem.field == "model.hf_config"
    return problem


def test_plain_keys_alone_are_enough():
    shape = parse_model(PLAIN)
    [kind] = shape.kinds
    assert (shape.kv_heads, shape.head_dim, shape.tied, kind.ffn.gated, shape.experts) == (4, 16, False, True, 0)
    assert shape.vision is None
    assert shape.mla is None


def test_plain_keys_can_say_what_a_model_type_would():
    [kind] = parse_model({**PLAIN, "mlp_gated": False, "qk_norm": True, "attention_bias": True}).kinds
    assert not kind.ffn.gated
    assert kind.attention.qk_norm == "heads"
    assert kind.attention.bias


def test_nested_and_flat_text_keys_are_the_same_model():
    nested = dict(models()["qwen2.5-vl-7b"].hf_config)
    text = nested.pop("text_config")
    flat = {**text, **nested, "model_type": "qwen2_5_vl"}
    assert parse_model(flat) == parse_model({**nested, "text_config": text})


def test_the_model_type_decides_what_config_json_does_not_say():
    qwen2, qwen3 = (parse_model({**PLAIN, "model_type": name}).kinds[0].attention for name in ("qwen2", "qwen3"))
    assert (qwen2.bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, "none")
    assert (qwen3.bias, qwen3.output_bias, qwen3.qk_norm) == (False, False, "heads")


def test_a_model_whose_other_parts_are_unknown_is_refused_though_its_text_part_is_known():
    """A speech encoder has parameters and work of its own."""
    whole = {"model_type": "granite_speech", "text_config": {**PLAIN, "model_type": "qwen2"}, "encoder_config": {}}
    problem = refusal(whole)
    assert (problem.code, problem.values["model_type"]) == ("unsupported_model_type", "granite_speech")


def test_the_text_part_of_a_vision_language_model_is_of_its_own_family():
    vision = {
        "model_type": "internvl_vision",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
    }
    text = {**PLAIN, "model_type": "qwen3"}
    shape = parse_model({"model_type": "internvl", "text_config": text, "vision_config": vision})
    assert shape.model_type == "internvl"
    assert shape.kinds[0].attention.qk_norm == "heads"
    assert shape.vision.depth == 2


def test_layers_of_several_kinds_keep_their_order():
    shape = parse_model({**PLAIN, "model_type": "qwen3_next", "num_hidden_layers": 8})
    assert shape.order == (0, 0, 0, 1, 0, 0, 0, 1)
    assert [type(kind.attention) for kind in shape.kinds] == [GatedDeltaNet, FullAttention]


def test_a_key_that_config_json_omits_has_the_value_that_transformers_gives_it():
    """https://huggingface.co/google/gemma-3-4b-it gives neither heads nor a vocabulary."""
    shape = parse_model({"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34})
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.vocab, shape.tied) == (8, 4, 256, 262208, True)


def test_a_null_is_the_absence_of_what_the_key_says():
    named = {**PLAIN, "model_type": "mistral"}
    assert parse_model(named).kinds[0].attention.window == 4096
    assert parse_model({**named, "sliding_window": None}).kinds[0].attention.window == 0


def test_the_deep_stack_is_counted_by_its_mergers():
    assert parse_model(models()["qwen3-vl-8b"].hf_config).vision.deep_stack == 3
    assert parse_model(models()["qwen2.5-vl-7b"].hf_config).vision.deep_stack == 0


@pytest.mark.parametrize("key", list(PLAIN))
def test_a_missing_size_is_named(key):
    problem = refusal({name: value for name, value in PLAIN.items() if name != key})
    assert (problem.code, problem.values["key"]) == ("missing_model_key", key)


@pytest.mark.parametrize("value", [0, -1, "4096", 4096.5, True, 10**12, [4096]])
def test_a_size_that_is_no_size_is_named(value):
    problem = refusal({**PLAIN, "hidden_size": value})
    assert (problem.code, problem.values["key"]) == ("bad_model_key", "hidden_size")


@pytest.mark.parametrize("model_type", ["mamba2", "no-such-model"])
def test_an_unknown_architecture_is_refused_and_not_guessed(model_type):
    problem = refusal({**PLAIN, "model_type": model_type})
    assert problem.code == "unsupported_model_type"
    assert problem.values["model_type"] == model_type


@pytest.mark.parametrize(
    ("keys", "sparse"),
    [
        ({"decoder_sparse_step": 2}, [False, True, False, True]),
        ({"mlp_only_layers": [0, 3]}, [False, True, True, False]),
        ({"first_k_dense_replace": 1}, [False, True, True, True]),
        ({"moe_layer_freq": [0, 1, 0, 1]}, [False, True, False, True]),
    ],
)
def test_dense_layers_between_expert_layers_stay_where_they_are(keys, sparse):
    shape = parse_model({**PLAIN, "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2, **keys})
    assert [isinstance(shape.kinds[kind].ffn, Experts) for kind in shape.order] == sparse


@pytest.mark.parametrize("value", [[1], 2, "x"])
def test_a_list_of_expert_layers_that_is_none_is_refused(value):
    config = {**PLAIN, "num_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": value}
    assert refusal(config).code in ("bad_model_key", "unsupported_model_key")


@pytest.mark.parametrize("broken", [{"text_config": "x"}, {"vision_config": "x", "model_type": "qwen3_vl", **PLAIN}])
def test_a_part_that_is_no_mapping_is_named(broken):
    assert refusal(broken).code == "bad_model_key"


def test_a_vision_tower_of_an_unknown_family_is_refused():
    assert refusal({**PLAIN, "model_type": "llama", "vision_config": {"depth": 2}}).code == "unsupported_model_type"


@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim"])
def test_a_size_with_a_default_must_not_be_zero(key):
    assert refusal({**PLAIN, key: 0}).values["key"] == key


def test_an_absent_part_may_be_said_to_be_zero():
    assert parse_model({**PLAIN, "num_experts": 0}) == parse_model(PLAIN)


def test_heads_must_not_be_more_than_the_hidden_size_allows():
    assert refusal({**PLAIN, "num_attention_heads": 128}).code == "bad_model_key"


def test_more_layers_than_any_model_has_are_refused_before_a_plan_is_made_of_them():
    assert refusal({**PLAIN, "num_hidden_layers": 100_000}).values["key"] == "num_hidden_layers"


def test_the_layers_of_a_hybrid_follow_its_config():
    jamba = {**PLAIN, "model_type": "jamba", "num_hidden_layers": 8, "attn_layer_period": 4, "attn_layer_offset": 2,
             "expert_layer_period": 2, "expert_layer_offset": 1}  # fmt: skip
    shape = parse_model(jamba)
    layers = [shape.kinds[index] for index in shape.order]
    assert [isinstance(layer.attention, FullAttention) for layer in layers] == [index % 4 == 2 for index in range(8)]
    assert [isinstance(layer.ffn, Experts) for layer in layers] == [index % 2 == 1 for index in range(8)]


def test_the_layers_of_nemotron_h_are_listed_or_a_pattern_and_have_attention_or_an_ffn():
    listed = {**PLAIN, "model_type": "nemotron_h", "layers_block_type": ["mamba", "mlp", "attention", "mlp"]}
    pattern = {**PLAIN, "model_type": "nemotron_h", "hybrid_override_pattern": "M-*-"}
    shape = parse_model(listed)
    assert shape == parse_model(pattern)
    assert shape.layers == 4
    assert all((kind.attention is None) != (kind.ffn is None) for kind in shape.kinds)
    problem = refusal({**pattern, "hybrid_override_pattern": "M-?"})
    assert (problem.code, problem.values["key"]) == ("bad_model_key", "layers_block_type")


def test_the_last_layers_of_gemma_4_read_the_keys_of_earlier_ones():
    config = {**PLAIN, "model_type": "gemma4_text", "head_dim": 16, "num_hidden_layers": 6, "num_kv_shared_layers": 2,
              "layer_types": ["sliding_attention"] * 5 + ["full_attention"], "global_head_dim": 32}  # fmt: skip
    shape = parse_model(config)
    attentions = [shape.kinds[index].attention for index in shape.order]
    assert [attention.projects for attention in attentions] == ["all"] * 4 + ["queries"] * 2
    assert [attention.head_dim for attention in attentions] == [16] * 5 + [32]


GEMMA3N = {"model_type": "gemma3n_text", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
           "vocab_size": 128, "num_kv_shared_layers": 2}  # fmt: skip


def test_a_layer_of_gemma_3n_has_the_width_and_the_sparsity_of_its_place():
    shape = parse_model({**GEMMA3N, "intermediate_size": [128, 128, 128, 64, 64, 64],
                         "activation_sparsity_pattern": [0.95, 0, 0, 0, 0, 0]})  # fmt: skip
    kinds = [shape.kinds[index] for index in shape.order]
    assert [kind.ffn.width for kind in kinds] == [128] * 3 + [64] * 3
    assert [kind.ffn.sparse for kind in kinds] == [True] + [False] * 5
    assert [kind.attention.projects for kind in kinds] == ["all"] * 4 + ["queries"] * 2
    assert [bool(kind.attention.window) for kind in kinds] == [True] * 4 + [False, True]
    assert {(kind.altup, kind.laurel, kind.per_layer) for kind in kinds} == {(4, 64, 256)}


@pytest.mark.parametrize("layers", [6, 12])
def test_the_first_ten_layers_of_gemma_3n_are_sparse_if_there_are_more(layers):
    shape = parse_model({**GEMMA3N, "num_hidden_layers": layers})
    assert sum(shape.kinds[index].ffn.sparse for index in shape.order) == (10 if layers > 10 else 0)


@pytest.mark.parametrize(("key", "value"), [
    ("intermediate_size", [128] * 5), ("intermediate_size", [128] * 5 + ["128"]),
    ("activation_sparsity_pattern", [0.95] * 5), ("activation_sparsity_pattern", 0.95),
])  # fmt: skip
def test_a_list_of_gemma_3n_that_does_not_fit_its_layers_is_refused(key, value):
    problem = refusal({**GEMMA3N, key: value})
    assert (problem.code, problem.values["key"]) == ("bad_model_key", key)


def test_the_tower_of_a_llava_is_the_one_that_its_config_names():
    pixtral = {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
               "num_attention_heads": 2, "image_size": 56, "patch_size": 14}  # fmt: skip
    llava = {"model_type": "llava", "text_config": {**PLAIN, "model_type": "mistral"}, "vision_config": pixtral}
    tower = parse_model(llava).vision
    assert (tower.gated, tower.positions, tower.image_patches) == (True, 0, 0)
    problem = refusal({**llava, "vision_config": {**pixtral, "model_type": "dinov2"}})
    assert (problem.code, problem.values["model_type"]) == ("unsupported_model_type", "dinov2")


def test_an_image_in_tiles_has_the_patches_of_all_tiles_and_of_the_whole_image():
    tower = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 2, "image_size": 56, "patch_size": 14}  # fmt: skip
    config = {"model_type": "llava_next", "text_config": {**PLAIN, "model_type": "llama"}, "vision_config": tower,
              "image_grid_pinpoints": [[56, 112], [112, 112]]}  # fmt: skip
    vision = parse_model(config).vision
    assert (vision.image_patches, vision.window) == (5 * 16, 16)


def test_the_engine_trains_the_thinker_of_an_omni_model_only():
    thinker = {"model_type": "qwen2_5_omni_thinker", "text_config": {**PLAIN, "model_type": "qwen2_5_omni_text"},
               "vision_config": {"model_type": "qwen2_5_omni_vision_encoder", "depth": 2, "hidden_size": 32,
                                 "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64, "patch_size": 14},
               "audio_config": {"model_type": "qwen2_5_omni_audio_encoder", "d_model": 32,
                                "encoder_layers": 2, "output_dim": 64}}  # fmt: skip
    whole = {"model_type": "qwen2_5_omni", "thinker_config": thinker, "talker_config": {"hidden_size": 8}}
    shape, part = parse_model(whole), parse_model(thinker)
    assert (shape.model_type, part.model_type) == ("qwen2_5_omni", "qwen2_5_omni_thinker")
    assert (shape.kinds, shape.vision) == (part.kinds, part.vision)
    assert refusal({**thinker, "audio_config": {}}).code == "missing_model_key"


LLAMA_4 = {
    "model_type": "llama4_text", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "intermediate_size": 32, "intermediate_size_mlp": 128, "num_local_experts": 4,
    "vocab_size": 256, "attention_chunk_size": 64,
}  # fmt: skip


def test_llama_4_attends_within_a_chunk_where_its_positions_rotate():
    shape = parse_model(LLAMA_4)
    attentions = [shape.kinds[index].attention for index in shape.order]
    # A token sees half of its chunk on average; queries and keys of these layers have a norm without weights.
    assert [(each.window, each.qk_norm) for each in attentions] == [(32, "bare")] * 3 + [(0, "none")]
    listed = parse_model({**LLAMA_4, "no_rope_layers": [0, 1, 1, 1], "use_qk_norm": False})
    attentions = [listed.kinds[index].attention for index in listed.order]
    assert [(each.window, each.qk_norm) for each in attentions] == [(0, "none")] + [(32, "none")] * 3


@pytest.mark.parametrize(
    ("keys", "sparse"),
    [
        ({}, [True] * 4),
        ({"interleave_moe_layer_step": 2}, [False, True, False, True]),
        ({"moe_layers": [0]}, [True, False, False, False]),
    ],
)
def test_llama_4_says_which_layers_have_experts(keys, sparse):
    shape = parse_model({**LLAMA_4, **keys})
    ffns = [shape.kinds[index].ffn for index in shape.order]
    assert [isinstance(ffn, Experts) for ffn in ffns] == sparse
    assert {(ffn.width, ffn.shared_width) for ffn in ffns if isinstance(ffn, Experts)} == {(32, 32)}
    assert {ffn.width for ffn in ffns if not isinstance(ffn, Experts)} <= {128}


def test_the_function_of_apertus_has_two_weights_and_steps_of_its_own():
    [kind] = parse_model({**PLAIN, "model_type": "apertus", "hidden_act": "xielu"}).kinds
    assert (kind.ffn.xielu, kind.ffn.gated, kind.other) == (True, False, 2)


def test_bloom_has_the_sizes_under_its_own_names_or_the_common_ones():
    sizes = {"vocab_size": 512, "model_type": "bloom"}
    own = parse_model({**sizes, "n_embed": 256, "n_layer": 4, "n_head": 4})
    assert own == parse_model({**sizes, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4})
    assert (own.layers, own.hidden, own.tied) == (4, 256, True)
