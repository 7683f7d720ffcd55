"""Families whose code is in the model's folder: layers, parameters and adapters of real models from config.json alone.

benchmarks/data/own_code.json has for each model its sizes, all parameters, the LoRA adapters of rank 8 on every
nn.Linear but the output layer and the projector, and where both come from. `checked` is `code` if they are counted on
the modelling file of `source`, built on the meta device with transformers 4.48 (5.6 for models that see; 4.52 and 4.57
for the files of Ling 2 and 2.5); `modules` if they are computed from a printed list of the model's modules; `other` if
they are those of another implementation.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from backend.estimate import estimate
from backend.estimate.memory.sharding import largest_module
from backend.estimate.memory.stage import Trained
from backend.estimate.model.adapters import adapted_linears, adapter_parameters, quantised_parameters
from backend.estimate.model.layers import operators_of
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters, vision_parameters
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.model.operators import Dispatch
from backend.job.model.own_code import OWN_CODE
from backend.job.model.own_towers import OWN_TOWERS
from backend.job.problems import ProblemsError
from backend.job.rules import check
from tests.estimate.cases import job
from tools.write_models import read_own_code


class Case(NamedTuple):
    """A real model."""

    config: dict[str, Any]
    parameters: int
    adapters: int | None
    """None if the modules of its own code were not read."""


CASES = {name: Case(each["config"], each["parameters"], each["adapters"]) for name, each in read_own_code().items()}


@pytest.mark.parametrize("name", list(CASES))
def test_a_model_with_its_own_code_has_the_parameters_that_its_code_builds(name):
    case = CASES[name]
    assert model_parameters(model_layers(parse_model(case.config))) == case.parameters


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.adapters])
def test_each_linear_module_of_own_code_has_one_adapter(name):
    """A projection of queries, keys and values in one module has one adapter, and not three."""
    case = CASES[name]
    assert adapter_parameters(model_layers(parse_model(case.config)), 8, "all", Trained()) == case.adapters


@pytest.mark.parametrize(
    ("name", "targets", "adapted"),
    [
        ("GLM-4-9B", "query_key_value", 40 * 8 * (4096 + 4608)),
        ("InternLM2.5-7B", "wqkv,w2", 32 * 8 * (4096 + 6144 + 14336 + 4096)),
        ("TeleChat-7B", "key_value", 30 * 8 * (4096 + 8192)),
        # Attention and FFN have a module of this name.
        ("Qwen-7B", "c_proj", 32 * 8 * (2 * 4096 + 11008 + 4096)),
        ("Qwen-7B", "q_proj", 0),
        ("EXAONE-3.0-7.8B", "c_fc_0", 32 * 8 * (4096 + 14336)),
        ("MiMo-7B", "q_proj", 37 * 8 * 2 * 4096),
    ],
)
def test_adapters_go_to_the_modules_that_own_code_names(name, targets, adapted):
    assert adapter_parameters(model_layers(parse_model(CASES[name].config)), 8, targets, Trained()) == adapted


def test_experts_of_own_code_are_modules_that_4_bits_pack_and_adapters_join():
    layers = model_layers(parse_model(CASES["DeepSeek-MoE-16B"].config))
    ends = 2 * layers.embedding
    norms, routers = 57 * 2048, 27 * 64 * 2048
    assert quantised_parameters(layers) == 16_375_728_128 - ends - norms - routers
    sparse = layers.kinds[layers.order[-1]]
    assert sum(linear.copies for linear, _ in adapted_linears(sparse, "down_proj")) == 64 + 1


@pytest.mark.parametrize(("name", "fetched"), [("DeepSeek-MoE-16B", 64 * 3), ("Kimi-VL-A3B", 0)])
def test_zero_3_fetches_experts_of_own_code_alone_unless_the_engine_joins_them(name, fetched):
    """add_z3_leaf_module of LLaMA-Factory 0.9.5 (model/model_utils/moe.py) knows kimi_vl, and not deepseek."""
    layers = model_layers(parse_model(CASES[name].config))
    [dispatch] = operators_of(layers.kinds[layers.order[-1]], Dispatch)
    expert = 1408 * 2048
    assert dispatch.fetched == fetched
    assert largest_module(layers) == max(layers.embedding, expert if fetched else 64 * 3 * expert)


def test_the_text_part_of_kimi_vl_is_that_of_its_own_code():
    """The tower and the projector are frozen by default; the code of DeepSeek-V3, built with these sizes, has as many
    linear modules."""
    layers = model_layers(parse_model(CASES["Kimi-VL-A3B"].config))
    text = Trained(tower=False, merger=False, deep_stack=False)
    assert model_parameters(layers) - sum(vision_parameters(layers.vision)) == 15_960_110_208
    assert adapter_parameters(layers, 8, "all", text) == 144_926_208


def test_a_tile_of_minicpm_v_becomes_as_many_tokens_as_its_resampler_has_queries():
    tower = parse_model(CASES["MiniCPM-V-2.6"].config).vision
    assert (tower.window, tower.patches_per_token, tower.depth) == (32 * 32, 32 * 32 // 64, 27)
    assert parse_model({**CASES["MiniCPM-V-2.6"].config, "drop_vision_last_layer": True}).vision.depth == 26


def test_layers_that_no_pass_runs_hold_weights_and_do_no_work():
    """MiMo's own code builds MTP layers, which are Qwen2's with a projection and three norms more. Megatron-Core builds
    them only if a job asks for them."""
    config = CASES["MiMo-7B"].config
    whole, plain = (parse_model({**config, "num_nextn_predict_layers": count}) for count in (1, 0))
    held, worked = model_layers(whole), model_layers(plain)
    layer = (7_622_619_136 - 2 * held.embedding - 4096) // 36
    assert model_parameters(worked) == 7_622_619_136
    assert model_parameters(held) == 7_622_619_136 + layer + 2 * 4096**2 + 3 * 4096
    assert (held.count, held.mtp) == (worked.count, worked.mtp) == (36, 0)
    assert model_parameters(model_layers(whole, megatron=True)) == 7_622_619_136


def test_layers_that_own_code_runs_hold_weights_and_have_no_estimate_on_a_hugging_face_engine():
    """Ling's own code runs its MTP layers. Megatron-Core builds them only if a job asks for them."""
    config = {**CASES["Ling-mini-2.0"].config, "num_nextn_predict_layers": 1}
    # Counted on the code of `source` with transformers 4.52.
    assert model_parameters(model_layers(parse_model(config))) == 17_083_504_896
    made = replace(job(engine="swift-zero3"), model=Model(hf_config=config))
    with pytest.raises(ProblemsError, match="estimate_not_modelled"):
        estimate(made)
    assert estimate(replace(made, engine="swift-megatron")).iteration_s
    assert "idle_layers" not in [problem.code for problem in check(replace(made, engine="llamafactory-ddp"))]


def test_only_version_2_of_ling_has_norms_of_queries_and_a_bias_of_each_expert():
    first, second = (parse_model(CASES[name].config).kinds[-1] for name in ("Ling-lite-1.5", "Ling-mini-2.0"))
    assert (first.attention.qk_norm, first.ffn.router_bias) == ("none", False)
    assert (second.attention.qk_norm, second.ffn.router_bias) == ("heads", True)


@pytest.mark.parametrize(
    ("keys", "parameters", "adapters"),
    [
        ({"num_nextn_predict_layers": 1}, 17_267_695_104, 318_777_856),
        # The layers after the last whole group have full attention, too.
        ({"num_hidden_layers": 22, "q_lora_rank": 256, "use_qk_norm": False}, 18_052_157_184, 334_674_944),
    ],
)
def test_other_sizes_of_ling_2_5_have_the_parameters_that_its_code_builds(keys, parameters, adapters):
    layers = model_layers(parse_model({**CASES["Ling 2.5, defaults"].config, **keys}))
    assert model_parameters(layers) == parameters
    assert adapter_parameters(layers, 8, "all", Trained()) == adapters


@pytest.mark.parametrize("name", ["Ling 2.5, defaults", "Ling-3.0-tiny"])
@pytest.mark.parametrize("engine", ["llamafactory-zero3", "swift-zero3", "swift-megatron"])
def test_of_lings_hybrid_models_only_2_5_on_megatron_has_a_memory_estimate(name, engine):
    made = replace(job(engine=engine), model=Model(hf_config=CASES[name].config))
    megatron, third = engine == "swift-megatron", name == "Ling-3.0-tiny"
    if third or not megatron:
        with pytest.raises(ProblemsError, match="estimate_not_modelled"):
            estimate(made)
    codes = {problem.code for problem in check(made)}
    assert ("linear_attention_differs" in codes) is (megatron and third)
    # Its default configuration has fewer heads of keys, which its own code does not read.
    assert ("lightning_key_heads" in codes) is (megatron and not third)


@pytest.mark.parametrize(
    ("name", "keys", "code"),
    [
        ("Ling-lite-1.5", {"norm_head": True}, "unsupported_model_key"),
        ("Ling-mini-2.0", {"num_nextn_predict_layers": "1"}, "bad_model_key"),
        ("Ling-mini-2.0", {"num_experts_per_tok": None}, "missing_model_key"),
        ("Ling 2.5, defaults", {"layer_group_size": 0}, "bad_model_key"),
        ("Ling 2.5, defaults", {"kv_lora_rank": None}, "missing_model_key"),
        ("Ling-3.0-tiny", {"no_kda_lora": False}, "unsupported_model_key"),
        ("Ling-3.0-tiny", {"short_conv_kernel_size": "4"}, "bad_model_key"),
        ("GLM-4-9B", {"rmsnorm": False}, "unsupported_model_key"),
        ("GLM-4-9B", {"multi_query_attention": False}, "unsupported_model_key"),
        # ChatGLM-6B has this key instead.
        ("GLM-4-9B", {"ffn_hidden_size": None, "inner_hidden_size": 16384}, "missing_model_key"),
        ("Qwen-72B", {"no_bias": False}, "unsupported_model_key"),
        ("TeleChat-7B", {"num_moe_experts": 16}, "unsupported_model_key"),
        ("DeepSeek-MoE-16B", {"moe_layer_freq": 2}, "unsupported_model_key"),
        # The language models of other versions are not described.
        ("MiniCPM-V-2.6", {"version": 2.5}, "unsupported_model_key"),
        ("MiniCPM-V-2.6", {"version": [2.6]}, "unsupported_model_key"),
        ("InternVL3.5-8B", {"vision_config": None}, "missing_model_key"),
        ("InternVL3.5-8B", {"vision_config": {"norm_type": "batch_norm"}}, "unsupported_model_key"),
        ("InternVL3.5-8B", {"vision_config": {"patch_size": 0}}, "bad_model_key"),
        ("InternVL3.5-8B", {"downsample_ratio": 2}, "bad_model_key"),
        ("InternVL3.5-8B", {"llm_config": None}, "missing_model_key"),
        ("InternVL3.5-8B", {"llm_config": {"model_type": "rwkv"}}, "unsupported_model_type"),
        ("InternVL3.5-8B", {"llm_config": []}, "bad_model_key"),
        ("Ovis2.5-9B", {"visual_vocab_size": 4}, "bad_model_key"),
        ("Ovis2.5-9B", {"vit_config": None}, "missing_model_key"),
        ("Ovis2.5-9B", {"vit_config": {"fullatt_block_indexes": [7]}}, "unsupported_model_key"),
        ("dots.ocr", {"vision_config": {"temporal_patch_size": 2}}, "unsupported_model_key"),
        ("dots.ocr", {"vision_config": {"num_attention_heads": 4096}}, "bad_model_key"),
        ("LLaVA-OneVision-1.5-8B", {"vision_config": {"num_heads": 4096}}, "bad_model_key"),
    ],
)
def test_own_code_with_other_layers_is_refused(name, keys, code):
    with pytest.raises(ProblemsError) as raised:
        parse_model({**CASES[name].config, **keys})
    assert raised.value.problems[0].code == code


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"compress_ratios": [0, 4] * 20}, "compress_ratios"),
        ({"compress_ratios": [2] * 39}, "compress_ratios"),
        ({"compress_ratios": [0] * 40}, "kv_source_layer_ids"),
        ({"kv_source_layer_ids": ["2"]}, "kv_source_layer_ids"),
        ({"engram_num_embeddings": [7]}, "engram_num_embeddings"),
        ({"engram_num_embeddings": [7, 10**12]}, "engram_num_embeddings"),
        ({"engram_head_dim": None}, "engram_head_dim"),
        ({"dspark_n_routed_experts": -1}, "dspark_n_routed_experts"),
        ({"hc_sinkhorn_iters": 10**6}, "hc_sinkhorn_iters"),
    ],
    ids=str,
)
def test_a_config_of_deepseek_v4_1_that_the_layers_do_not_follow_from_is_refused(keys, key):
    config = CASES["DeepSeek-V4.1-Flash"].config
    with pytest.raises(ProblemsError) as raised:
        parse_model({**config, "text_config": {**config["text_config"], **keys}})
    assert [problem.values["key"] for problem in raised.value.problems] == [key]


@pytest.mark.parametrize("engine", ["llamafactory-zero3", "swift-zero3", "swift-megatron"])
def test_deepseek_v4_1_has_no_memory_estimate(engine):
    made = replace(job(engine=engine), model=Model(hf_config=CASES["DeepSeek-V4.1-Flash"].config))
    with pytest.raises(ProblemsError, match="estimate_not_modelled"):
        estimate(made)


def test_minicpm_has_an_estimate_unless_its_attention_is_sparse():
    config = CASES["MiniCPM4-8B"].config
    tied, untied = (parse_model({**config, **keys}) for keys in ({}, {"tie_word_embeddings": False}))
    assert (tied.tied, untied.tied) == (True, False)
    with pytest.raises(ProblemsError):
        parse_model({**config, "sparse_config": {"kernel_size": 32}})


def test_every_family_and_tower_with_its_own_code_has_a_real_model():
    # The thinker is a part of Qwen3-ASR, which tests/job/test_newer.py compares.
    described = OWN_CODE.keys() | OWN_TOWERS.keys() - {"qwen3_asr_thinker"}
    assert {case.config["model_type"] for case in CASES.values()} == described
