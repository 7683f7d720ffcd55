"""Types that transformers 5.6 does not have: the parameters of the default configuration of a later transformers.

benchmarks/data/newer_types.json has the configurations and what transformers builds from them;
tests/engines/test_newer_types.py asks transformers again.
"""

from dataclasses import replace

import pytest

from backend.estimate import estimate
from backend.estimate.memory.attention_scores import mask_bytes
from backend.estimate.memory.eager_activations import EagerForm
from backend.estimate.memory.stage import Trained
from backend.estimate.model.adapters import adapter_parameters
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.estimate.plan import Plan
from backend.job.job import Model
from backend.job.mapping import with_values
from backend.job.model import parse_model
from backend.job.model.newer import NEWER, NEWER_TOWERS
from backend.job.model.operators import Linear
from backend.job.presets import models
from backend.job.problems import ProblemsError
from backend.job.rules import check
from benchmarks.small_models import NEWER_MODELS, TOWER_MODELS
from tests.estimate.cases import job
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
    # transformers has no class for the language part of GLM-5.3 alone.
    assert NEWER_MODELS.keys() - {"glm5_next_text"} <= TYPES.keys()


def test_the_operations_and_the_step_peak_of_small_models_are_near_those_that_torch_counts():
    measured = read_newer_types()
    assert all(abs(error) < 0.05 for error in measured["flops"].values())
    assert all(abs(error) < 0.1 for errors in measured["peaks"].values() for error in errors.values())


def test_the_heads_of_a_layer_may_be_written_for_each_layer():
    keys = {
        "model_type": "gemma4_unified_text", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "attention_k_eq_v": True,
    }  # fmt: skip
    of_all = parse_model({**keys, "global_head_dim": 128, "num_global_key_value_heads": 1})
    own = {"05": {"head_dim": 128, "num_key_value_heads": 1}}
    assert parse_model({**keys, "per_layer_config": own}) == of_all
    with pytest.raises(ProblemsError):
        parse_model({**keys, "per_layer_config": {"05": {"num_attention_heads": 2}}})


GEMMA_MIX = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "global_head_dim": 128, "num_global_key_value_heads": 1,
    "vocab_size": 512, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64,
}  # fmt: skip


def test_gemma_4_with_experts_has_the_parameters_of_transformers():
    keys = {
        **GEMMA_MIX, "model_type": "gemma4_text", "enable_moe_block": True, "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
    }  # fmt: skip
    shape = parse_model(keys)
    # Counted on Gemma4ForCausalLM of transformers 5.6.0.
    assert model_parameters(model_layers(shape)) == 6_153_392
    assert (shape.top_k, shape.ffn) == (2, 0)


@pytest.mark.parametrize(
    "keys",
    [
        {"model_type": "diffusion_gemma", "text_config": {**GEMMA_MIX, "model_type": "diffusion_gemma_text"}},
        TYPES["deepseek_ocr2"]["config"],
    ],
    ids=["DiffusionGemma", "DeepSeek-OCR 2"],
)
def test_types_that_do_not_run_as_a_decoder_with_one_tower_have_no_memory_estimate(keys):
    with pytest.raises(ProblemsError, match="estimate_not_modelled"):
        estimate(replace(job(engine="swift-zero3"), model=Model(hf_config=keys)))


def _changed(name, part, **keys):
    config = TYPES[name]["config"] | {"model_type": name}
    return {**config, part: {**(config[part] or {}), **keys}} if part else {**config, **keys}


@pytest.mark.parametrize(
    ("name", "part", "keys", "key"),
    [
        ("granite4_vision", "", {"downsample_rate": None}, "downsample_rate"),
        ("granite4_vision", "", {"downsample_rate": "0/8"}, "downsample_rate"),
        ("granite4_vision", "", {"downsample_rate": "3/8"}, "downsample_rate"),
        ("granite4_vision", "", {"deepstack_layer_map": None}, "deepstack_layer_map"),
        ("granite4_vision", "", {"image_grid_pinpoints": []}, "image_grid_pinpoints"),
        ("granite4_vision", "qformer_config", {"hidden_size": 1024}, "hidden_size"),
        ("granite4_vision", "qformer_config", {"use_qformer_text_input": True}, "use_qformer_text_input"),
        ("granite4_vision", "qformer_config", {"num_hidden_layers": 10**6}, "num_hidden_layers"),
        ("deepseek_ocr2", "vision_config", {"sam_config": {"mlp_ratio": 0}}, "mlp_ratio"),
        ("deepseek_ocr2", "vision_config", {"sam_config": {"downsample_channels": [1]}}, "downsample_channels"),
        ("deepseek_ocr2", "vision_config", {"sam_config": {"num_attention_heads": 0}}, "num_attention_heads"),
        ("deepseek_ocr2", "vision_config", {"encoder_config": {"num_attention_heads": 10**6}}, "num_attention_heads"),
    ],
    ids=str,
)
def test_a_damaged_tower_of_granite_4_vision_or_deepseek_ocr_2_is_refused(name, part, keys, key):
    with pytest.raises(ProblemsError) as raised:
        parse_model(_changed(name, part, **keys))
    assert [problem.values["key"] for problem in raised.value.problems] == [key]


def test_the_names_of_moonshots_own_code_give_the_same_tower():
    preset = models()["kimi-k2.5"].hf_config
    tower = {
        "model_type": "", "vt_hidden_size": 1152, "vt_intermediate_size": 4304, "vt_num_attention_heads": 16,
        "vt_num_hidden_layers": 27, "init_pos_emb_height": 64, "init_pos_emb_width": 64, "merge_kernel_size": [2, 2],
        "mm_hidden_size": 1152, "mm_projector_type": "patchmerger", "patch_size": 14,
    }  # fmt: skip
    assert parse_model({**preset, "vision_config": tower}) == parse_model(preset)
    with pytest.raises(ProblemsError):
        parse_model({**preset, "vision_config": {**tower, "mm_projector_type": "mlp"}})


def test_the_config_of_qwen3_asr_for_its_own_package_gives_the_same_model():
    keys = TOWER_MODELS["qwen3_asr"]
    audio = {**keys["audio_config"], "model_type": "qwen3_asr_audio_encoder", "n_window": 50, "n_window_infer": 800}
    text = {**keys["text_config"], "model_type": "qwen3_asr_text", "attention_bias": False, "hidden_act": "silu"}
    thinker = {"audio_config": audio, "text_config": text, "tie_word_embeddings": False}
    own, ours = parse_model({"model_type": "qwen3_asr", "thinker_config": thinker}), parse_model(keys)
    assert model_parameters(model_layers(own)) == model_parameters(model_layers(ours))
    with pytest.raises(ProblemsError):
        parse_model({"model_type": "qwen3_asr", "thinker_config": {**thinker, "classify_num": 5000}})


@pytest.mark.parametrize(
    "changed",
    [{"downsample_mode": "4x"}, {"merger_times": 2}, {"insert_layer_id": -1}, {"merge_kernel_size": [4, 4]}],
    ids=str,
)
def test_a_form_of_minicpm_v_that_is_not_described_is_refused(changed):
    with pytest.raises(ProblemsError) as raised:
        parse_model({**TOWER_MODELS["minicpmv4_6"], **changed})
    assert [problem.code for problem in raised.value.problems] == ["unsupported_model_key"]


def test_each_layer_of_laguna_has_its_own_heads_and_a_gate_for_each():
    shape = parse_model(NEWER_MODELS["laguna"])
    heads = [shape.kinds[index].attention.heads for index in shape.order]
    assert heads == [4, 4, 8, 4]
    with pytest.raises(ProblemsError):
        parse_model({**NEWER_MODELS["laguna"], "num_attention_heads_per_layer": [4]})


V4 = {
    "model_type": "deepseek_v4", "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "head_dim": 32,
    "q_lora_rank": 48, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "vocab_size": 128,
    "hc_mult": 2, "o_groups": 2, "o_lora_rank": 24, "index_n_heads": 3, "index_head_dim": 16, "num_hash_layers": 2,
    "compress_ratios": [0, 4, 128, 4, 0, 0],
}  # fmt: skip
NAMED = {
    **V4, "compress_ratios": None, "num_hash_layers": None, "compress_rate_csa": 6,
    "layer_types": ["compressed_sparse_attention"] * 5, "mlp_layer_types": ["moe"] * 4 + ["hash_moe"],
}  # fmt: skip


@pytest.mark.parametrize(("keys", "parameters", "adapters"), [(V4, 501_997, 48_112), (NAMED, 540_389, 61_240)])
def test_the_names_of_deepseeks_own_config_give_the_layers_of_transformers(keys, parameters, adapters):
    # Counted on DeepseekV4ForCausalLM of transformers 5.19.0.
    layers = model_layers(parse_model(keys))
    assert model_parameters(layers) == parameters
    assert adapter_parameters(layers, 8, "all", Trained()) == adapters


GLM_NEXT = {
    "model_type": "glm5_next",
    "text_config": {
        "model_type": "glm5_next_text", "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 512, "moe_intermediate_size": 64, "n_routed_experts": 8,
        "n_shared_experts": 2, "num_experts_per_tok": 2, "vocab_size": 512, "kv_lora_rank": 32, "q_lora_rank": 64,
        "qk_nope_head_dim": 32, "v_head_dim": 48, "index_n_heads": 4, "index_head_dim": 32, "index_topk": 64,
        "index_kpool": 8, "linear_num_heads": 4, "linear_head_dim": 32, "hc_mult": 2,
    },
    "vision_config": {
        "model_type": "glm5_next_vision", "depth": 2, "hidden_size": 64, "num_heads": 4, "out_hidden_size": 256,
        "intermediate_size": 128, "projection_intermediate_size": 320,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "parameters"),
    [
        ({}, 5_702_704),
        ({"indexer_types": ["full", "shared"] * 4}, 5_650_864),
        ({"layer_types": ["indexed_attention"] * 8, "index_topk_freq": 2}, 5_383_768),
        ({"mlp_layer_types": ["sparse", "dense"] * 4}, 5_602_344),
    ],
    ids=["defaults", "listed", "a period", "experts first"],
)
def test_layers_of_glm_5_3_have_the_parameters_of_transformers(keys, parameters):
    # Counted on Glm5NextForConditionalGeneration of transformers 5.19.0.
    text = {**GLM_NEXT["text_config"], **keys}
    assert model_parameters(model_layers(parse_model({**GLM_NEXT, "text_config": text}))) == parameters


def test_glm_5_3_needs_a_later_megatron_core_than_its_predecessors():
    made = replace(job(engine="swift-megatron"), model=Model(hf_config=GLM_NEXT))
    codes = [problem.code for problem in check(made)]
    assert "megatron_core_dev" in codes
    assert not [code for code in codes if code.startswith("chosen_keys")]


def test_each_layer_of_deepseek_v4_has_its_own_attention():
    shape = parse_model(V4)
    mixers = [shape.kinds[index].attention for index in shape.order]
    assert [each.compressor.rate if each.compressor else 0 for each in mixers] == [0, 4, 128, 4, 0]
    assert [each.masked for each in mixers] == [False, True, False, True, False]
    assert [shape.kinds[index].ffn.router_bias for index in shape.order] == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("keys", "code", "key"),
    [
        ({"compress_ratios": [0, 4, 64, 4, 0]}, "bad_model_key", "compress_ratios"),
        ({"compress_ratios": "4"}, "bad_model_key", "compress_ratios"),
        ({"compress_ratios": [4]}, "bad_model_key", "layer_types"),
        ({"compress_rates": {"compressed_sparse_attention": 0}}, "bad_model_key", "compress_rates"),
        ({"compress_rates": [4, 128]}, "bad_model_key", "compress_rates"),
        ({"o_groups": 3}, "bad_model_key", "o_groups"),
        ({"hc_mult": 10**6}, "bad_model_key", "hc_mult"),
        ({"index_head_dim": "16"}, "bad_model_key", "index_head_dim"),
        ({"layer_types": ["full_attention"] * 5}, "unsupported_model_key", "layer_types"),
        ({"layer_types": [["sliding_attention"]] * 5}, "bad_model_key", "layer_types"),
        ({"mlp_layer_types": ["dense"] * 5}, "unsupported_model_key", "mlp_layer_types"),
        ({"n_shared_experts": 2}, "unsupported_model_key", "n_shared_experts"),
    ],
    ids=str,
)
def test_a_config_of_deepseek_v4_that_the_layers_do_not_follow_from_is_refused(keys, code, key):
    with pytest.raises(ProblemsError) as raised:
        parse_model({**V4, **keys})
    [problem] = raised.value.problems
    assert (problem.code, problem.values["key"]) == (code, key)


@pytest.mark.parametrize("keys", [V4, GLM_NEXT], ids=["V4", "GLM-5.3"])
def test_hyper_connections_have_an_estimate_on_hugging_face_engines_alone(keys):
    made = replace(job(engine="swift-megatron"), model=Model(hf_config=keys))
    with pytest.raises(ProblemsError, match="estimate_not_modelled"):
        estimate(made)
    for engine in ("llamafactory-zero3", "swift-zero3"):
        assert estimate(replace(made, engine=engine)).iteration_s > 0


def test_an_indexer_of_compressed_keys_is_not_trained_on_a_hugging_face_engine():
    made = replace(job(engine="swift-zero3"), model=Model(hf_config=V4))
    assert "indexer_not_trained" in [problem.code for problem in check(made)]
    adapted = with_values(made, {"training.method": "lora", "training.lora.targets": "q_b_proj"})
    [found] = [problem for problem in check(adapted) if problem.code == "adapters_on_indexer"]
    assert "adapters_on_indexer" not in [problem.code for problem in check(with_values(adapted, found.edit))]


def test_an_adapter_on_rows_of_groups_of_heads_is_refused():
    made = replace(job(engine="swift-zero3"), model=Model(hf_config=V4))
    for targets, kept in (("all", "q_a_proj,o_b_proj,up_proj,down_proj"), ("o_a_proj,o_b_proj", "o_b_proj")):
        adapted = with_values(made, {"training.method": "lora", "training.lora.targets": targets})
        [found] = [problem for problem in check(adapted) if problem.code == "adapters_on_grouped_rows"]
        assert (found.severity, found.edit) == ("error", {"training.lora.targets": kept})
        assert "adapters_on_indexer" not in {problem.code for problem in check(adapted)}, "one button is enough"
        left = {problem.code for problem in check(with_values(adapted, found.edit))}
        assert not {"adapters_on_grouped_rows", "adapters_on_indexer"} & left


def test_mcore_bridge_needs_a_later_megatron_core_for_deepseek_v4():
    made = replace(job(engine="swift-megatron"), model=Model(hf_config=V4))
    assert [problem.code for problem in check(made) if problem.field == "engine"] == ["megatron_core_dev"]
    # A type without a description has the warning, too.
    made = replace(made, model=Model(hf_config={"model_type": "deepseek_v41"}))
    assert "megatron_core_dev" in [problem.code for problem in check(made)]


def test_windows_of_mimo_have_sinks_and_twice_as_many_key_heads():
    keys = NEWER_MODELS["mimo_v2_flash"]
    full, sliding = (kind.attention for kind in parse_model(keys).kinds[:2])
    assert (full.kv_heads, full.sinks, full.value_dim) == (2, "", 32)
    assert (sliding.kv_heads, sliding.sinks, sliding.value_dim) == (4, "logit", 32)
    with pytest.raises(ProblemsError, match="sliding_window"):
        parse_model({**keys, "sliding_window": None})


def test_moonshots_own_keys_give_the_same_kimi_linear():
    ours = {key: value for key, value in NEWER_MODELS["kimi_linear"].items() if not key.startswith("linear_")}
    del ours["num_experts_per_tok"], ours["layer_types"]
    part = {
        "head_dim": 64, "num_heads": 4, "short_conv_kernel_size": 4, "full_attn_layers": [3], "kda_layers": [1, 2, 4],
    }  # fmt: skip
    own = {**ours, "num_experts_per_token": 2, "linear_attn_config": part}
    assert parse_model(own) == parse_model(NEWER_MODELS["kimi_linear"])


@pytest.mark.parametrize(
    "changed",
    [
        {"full_attn_layers": [2, 3]},
        {"full_attn_layers": [3, 9]},
        {"full_attn_layers": 3},
        {"kda_layers": ["1"]},
        {"head_dim": -1},
    ],
    ids=str,
)
def test_a_damaged_part_of_kimi_linear_is_refused(changed):
    part = {"full_attn_layers": [3], "kda_layers": [1, 2, 4], **changed}
    keys = {**NEWER_MODELS["kimi_linear"], "layer_types": None, "linear_attn_config": part}
    with pytest.raises(ProblemsError) as raised:
        parse_model(keys)
    assert [problem.code for problem in raised.value.problems] == ["bad_model_key"]


HY4 = {
    "model_type": "hy_v4", "hidden_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4, "q_lora_rank": 48,
    "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 40, "intermediate_size": 130,
    "moe_intermediate_size": 70, "n_routed_experts": 10, "n_shared_experts": 2, "num_experts_per_tok": 3,
    "vocab_size": 512, "index_n_heads": 3, "index_head_dim": 32, "hc_mult": 3,
}  # fmt: skip
ZAYA = {
    "model_type": "zaya", "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 24, "moe_intermediate_size": 70, "num_experts": 5, "num_experts_per_tok": 1, "vocab_size": 512,
    "router_hidden_size": 20, "cca_time0": 3, "cca_time1": 2, "layer_types": ["hybrid", "hybrid_sliding", "hybrid"],
    "sliding_window": 128,
}  # fmt: skip


@pytest.mark.parametrize(("keys", "parameters", "adapters"), [(HY4, 1_732_590, 104_856), (ZAYA, 469_366, 23_760)])
def test_hy_4_and_zaya_have_the_parameters_and_the_adapters_of_transformers(keys, parameters, adapters):
    # Counted on HYV4ForCausalLM and ZayaForCausalLM of transformers 5.19.0.
    layers = model_layers(parse_model(keys))
    assert model_parameters(layers) == parameters
    assert adapter_parameters(layers, 8, "all", Trained()) == adapters


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({**HY4, "indexer_types": ["full"]}, "indexer_types"),
        ({**HY4, "hc_mult": 10**6}, "hc_mult"),
        ({**ZAYA, "lm_head_bias": True}, "lm_head_bias"),
        ({**ZAYA, "num_experts_per_tok": 2}, "num_experts_per_tok"),
        ({**ZAYA, "layer_types": ["full_attention"] * 3}, "layer_types"),
    ],
    ids=["indexers", "streams", "bias", "experts", "types"],
)
def test_a_form_of_hy_4_or_zaya_that_is_not_described_is_refused(keys, key):
    with pytest.raises(ProblemsError) as raised:
        parse_model(keys)
    assert [problem.values["key"] for problem in raised.value.problems] == [key]


def test_minimaxs_own_keys_give_the_same_sparse_layers():
    keys = NEWER_MODELS["minimax_m3_vl_text"]
    ours = {key: value for key, value in keys.items() if key not in ("layer_types", "mlp_layer_types")}
    part = {
        "sparse_attention_freq": [0, 1, 1, 0], "sparse_num_index_heads": 2, "sparse_index_dim": 32,
        "sparse_block_size": 16,
    }  # fmt: skip
    own = {
        **ours, "index_n_heads": 4, "hidden_act": "swigluoai", "moe_layer_freq": [0, 1, 1, 1],
        "sparse_attention_config": part,
    }  # fmt: skip
    assert parse_model(own) == parse_model(keys)
    for damaged in ("all", ["a", 1, 1, 0], [None] * 4, [2, 1, 1, 0]):
        with pytest.raises(ProblemsError, match="sparse_attention_freq"):
            parse_model({**own, "sparse_attention_config": {**part, "sparse_attention_freq": damaged}})


def test_each_head_of_minimax_m3_saves_a_mask_of_its_own():
    shape = parse_model(NEWER_MODELS["minimax_m3_vl_text"])
    full, sparse = (shape.kinds[shape.order[index]] for index in (3, 1))
    plan = Plan(sequence_length=4096, micro_batches=1)
    kinds = dict(zip(shape.kinds, model_layers(shape).kinds, strict=True))
    form = EagerForm()
    assert mask_bytes(kinds[full], plan, form) == 0
    assert mask_bytes(kinds[sparse], plan, form) == 4 * 2 * 4096


def test_adapters_on_the_queries_of_minimax_m3_would_be_on_its_indexer_too():
    made = replace(job(engine="swift-zero3"), model=Model(hf_config=NEWER_MODELS["minimax_m3_vl_text"]))
    adapted = with_values(made, {"training.method": "lora", "training.lora.targets": "all"})
    [found] = [problem for problem in check(adapted) if problem.code == "adapters_on_indexer"]
    assert found.edit == {"training.lora.targets": "v_proj,o_proj,gate_up_proj,down_proj"}


def test_steps_own_keys_give_the_same_layers():
    keys = TOWER_MODELS["step3p7"]
    text = keys["text_config"]
    renamed = {
        "n_routed_experts": "moe_num_experts", "num_experts_per_tok": "moe_top_k",
        "num_key_value_heads": "num_attention_groups", "share_expert_dim": "share_expert_dims",
    }  # fmt: skip
    own = {renamed.get(key, key): value for key, value in text.items() if key != "num_sliding_attention_heads"}
    own |= {
        "mlp_layer_types": None, "moe_layers_enum": "1,2,3", "attention_other_setting": {"num_attention_heads": 8},
        # Releases list the layers for multi-token prediction, too.
        "layer_types": [*text["layer_types"], "full_attention"],
    }  # fmt: skip
    assert parse_model({**keys, "text_config": own}) == parse_model(keys)
    with pytest.raises(ProblemsError):
        parse_model({**keys, "text_config": {**own, "moe_layers_enum": "1,two"}})


@pytest.mark.parametrize("ratio", [0.001, 0, -1, 2000, True, "4", None])
def test_a_ratio_that_leaves_the_ffn_of_steps_tower_no_width_is_refused(ratio):
    keys = TOWER_MODELS["step3p7"]
    with pytest.raises(ProblemsError, match="mlp_ratio"):
        parse_model({**keys, "vision_config": {**keys["vision_config"], "mlp_ratio": ratio}})


def test_hunyuan_ocrs_flat_config_gives_the_same_model():
    keys = TOWER_MODELS["hunyuan_vl"]
    text = {key: value for key, value in keys["text_config"].items() if key not in ("model_type", "head_dim")}
    flat = {**text, "attention_head_dim": 64, "model_type": "hunyuan_vl", "vision_config": keys["vision_config"]}
    assert parse_model(flat) == parse_model(keys)


def test_the_language_part_of_cohere_compass_alone_is_tied():
    text = {key: value for key, value in NEWER_MODELS["cohere_compass_text"].items() if key != "tie_word_embeddings"}
    assert parse_model(text).tied
    whole = {key: value for key, value in TOWER_MODELS["cohere_compass"].items() if key != "tie_word_embeddings"}
    assert not parse_model(whole).tied


def test_gates_of_norms_in_ax_k2_are_missing_before_a_dense_ffn():
    dense, sparse = (layer.operators for layer in model_layers(parse_model(NEWER_MODELS["axk2"])).kinds)
    gates = [sum(isinstance(each, Linear) and each.name == "fc1" for each in kind) for kind in (dense, sparse)]
    assert gates == [1, 2]
