"""Types that transformers 5.6 does not have: the parameters of the default configuration of a later transformers.

benchmarks/data/newer_types.json has the configurations and what transformers builds from them;
tests/engines/test_newer_types.py asks transformers again.
"""

import pytest

from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.model import parse_model
from backend.job.model.newer import NEWER, NEWER_TOWERS
from backend.job.model.operators import Linear
from backend.job.presets import models
from backend.job.problems import ProblemsError
from benchmarks.small_models import NEWER_MODELS, TOWER_MODELS
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
    assert NEWER_MODELS.keys() <= TYPES.keys()


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


def test_gates_of_norms_in_ax_k2_are_missing_before_a_dense_ffn():
    dense, sparse = (layer.operators for layer in model_layers(parse_model(NEWER_MODELS["axk2"])).kinds)
    gates = [sum(isinstance(each, Linear) and each.name == "fc1" for each in kind) for kind in (dense, sparse)]
    assert gates == [1, 2]
