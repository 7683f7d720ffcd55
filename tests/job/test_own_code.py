"""Families whose code is in the model's folder: layers, parameters and adapters of real models from config.json alone.

Unless a case says otherwise, both numbers are counted on the modelling file that own_code.py names, built on the meta
device with transformers 4.48: all parameters, and LoRA adapters of rank 8 on every nn.Linear but the output layer.
"""

from typing import Any, NamedTuple

import pytest

from backend.estimate.memory.stage import Trained
from backend.estimate.model.adapters import adapted_linears, adapter_parameters, quantised_parameters
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.parameters import model_parameters
from backend.job.model import parse_model
from backend.job.problems import ProblemsError


class Case(NamedTuple):
    """A real model, or a small one with all that its code can have."""

    config: dict[str, Any]
    parameters: int
    adapters: int


GLM = {
    "model_type": "chatglm", "add_bias_linear": False, "add_qkv_bias": True, "ffn_hidden_size": 13696,
    "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2,
    "num_attention_heads": 32, "post_layer_norm": True, "rmsnorm": True, "tie_word_embeddings": False,
}  # fmt: skip
QWEN = {"model_type": "qwen", "kv_channels": 128, "no_bias": True, "tie_word_embeddings": False}
TELECHAT = {"model_type": "telechat", "embed_layernorm": False, "hidden_dropout": 0.1}
CASES = {
    # czk1997/chatglm3-copy config.json @456aa875cf1f. Its pytorch_model.bin.index.json has 12,487,168,064 bytes of 16
    # bits, of which 32 elements are frequencies.
    "ChatGLM3-6B": Case({**GLM, "num_layers": 28, "padded_vocab_size": 65024}, 6_243_584_000, 14_823_424),
    # The keys of THUDM/glm-4-9b-chat. foldl/chatllm.cpp docs/tool_calling.md @56c61da2b920 prints as many parameters,
    # and so has transformers' default for `glm`, which is the same model.
    "GLM-4-9B": Case(
        {**GLM, "num_hidden_layers": 40, "num_layers": 40, "padded_vocab_size": 151552, "vocab_size": 151552},
        9_399_951_360,
        21_176_320,
    ),
    # BudEcosystem/simulator BudSimulator/model_param_test.py @f4880392a257 quotes its config.json. README.md of
    # deepseek-ai/DeepSeek-MoE has 16.4 billion parameters.
    "DeepSeek-MoE-16B": Case(
        {
            "model_type": "deepseek", "attention_bias": False, "first_k_dense_replace": 1, "hidden_act": "silu",
            "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "moe_layer_freq": 1,
            "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6,
            "num_hidden_layers": 28, "num_key_value_heads": 16, "vocab_size": 102400,
        },
        16_375_728_128,
        150_460_928,
    ),
    # Retruth/deontic nlp_models/exaone/README.md @a77cf87a7777 prints its config and every module with its sizes, from
    # which both numbers are computed.
    "EXAONE-3.0-7.8B": Case(
        {
            "model_type": "exaone", "activation_function": "silu", "hidden_size": 4096, "intermediate_size": 14336,
            "num_attention_heads": 32, "num_key_value_heads": 8, "num_layers": 32, "tie_word_embeddings": False,
            "vocab_size": 102400,
        },
        7_818_448_896,
        20_971_520,
    ),
    # foldl/chatllm.cpp docs/tool_calling.md @56c61da2b920 prints as many parameters.
    "InternLM2.5-7B": Case(
        {
            "model_type": "internlm2", "bias": False, "hidden_size": 4096, "intermediate_size": 14336,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
            "tie_word_embeddings": False, "vocab_size": 92544,
        },
        7_737_708_544,
        18_874_368,
    ),
    # zhaoyukoon/damoxing_fenci_gongji internlm3-8b-instruct/config.json @87e80c4e0953. Its
    # model.safetensors.index.json has 35,216,965,632 bytes of 32 bits.
    "InternLM3-8B": Case(
        {
            "model_type": "internlm3", "bias": False, "head_dim": 128, "hidden_size": 4096,
            "intermediate_size": 10240, "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 2,
            "qkv_bias": False, "tie_word_embeddings": False, "vocab_size": 128512,
        },
        8_804_241_408,
        26_148_864,
    ),
    # jj8127/mimo_kor config.json @1bdf82cea258. Its model.safetensors.index.json has 15,666,819,072 bytes of 16 bits.
    "MiMo-7B": Case(
        {
            "model_type": "mimo", "attention_bias": True, "head_dim": 128, "hidden_size": 4096,
            "intermediate_size": 11008, "max_window_layers": 32, "num_attention_heads": 32, "num_hidden_layers": 36,
            "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "sliding_window": 32768,
            "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151680,
        },
        7_833_409_536,
        21_391_360,
    ),
    # undefdev/Qwen-7B-Chat config.json @04df5dd57b94: the keys of the first version.
    "Qwen-7B": Case(
        {**QWEN, "ffn_hidden_size": 22016, "n_embd": 4096, "n_head": 32, "n_layer": 32, "vocab_size": 151936},
        7_721_324_544,
        17_891_328,
    ),
    # mapengAdam/qianwen-72B config.json @c677f291486f. Its model.safetensors.index.json has 144,575,840,256 bytes of 16
    # bits.
    "Qwen-72B": Case(
        {
            **QWEN, "hidden_size": 8192, "intermediate_size": 49152, "num_attention_heads": 64,
            "num_hidden_layers": 80, "vocab_size": 152064,
        },
        72_287_920_128,
        94_371_840,
    ),
    # Tele-AI/Telechat models/7B and models/12B: config.json @9faf3bc40ee0. Their pytorch_model.bin.index.json have
    # 14,400,036,864 and 24,772,864,000 bytes of 16 bits.
    "TeleChat-7B": Case(
        {**TELECHAT, "ffn_hidden_size": 12288, "hidden_size": 4096, "n_head": 32, "n_layer": 30, "vocab_size": 160256},
        7_200_018_432,
        18_677_760,
    ),
    "TeleChat-12B": Case(
        {
            **TELECHAT, "ffn_hidden_size": 12288, "hidden_size": 5120, "n_head": 32, "n_layer": 38,
            "tie_word_embeddings": False, "vocab_size": 120000,
        },
        12_386_432_000,
        26_771_456,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_a_model_with_its_own_code_has_the_parameters_that_its_code_builds(name):
    case = CASES[name]
    assert model_parameters(model_layers(parse_model(case.config))) == case.parameters


@pytest.mark.parametrize("name", list(CASES))
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
    assert model_parameters(model_layers(whole, routed=True)) == 7_622_619_136


@pytest.mark.parametrize(
    ("name", "keys", "code"),
    [
        ("GLM-4-9B", {"rmsnorm": False}, "unsupported_model_key"),
        ("GLM-4-9B", {"multi_query_attention": False}, "unsupported_model_key"),
        # ChatGLM-6B has this key instead.
        ("GLM-4-9B", {"ffn_hidden_size": None, "inner_hidden_size": 16384}, "missing_model_key"),
        ("Qwen-72B", {"no_bias": False}, "unsupported_model_key"),
        ("TeleChat-7B", {"num_moe_experts": 16}, "unsupported_model_key"),
        ("DeepSeek-MoE-16B", {"moe_layer_freq": 2}, "unsupported_model_key"),
    ],
)
def test_own_code_with_other_layers_is_refused(name, keys, code):
    with pytest.raises(ProblemsError) as raised:
        parse_model({**CASES[name].config, **keys})
    assert raised.value.problems[0].code == code


def test_minicpm_has_an_estimate_unless_its_attention_is_sparse():
    """huggingface/transformers src/transformers/models/minicpm4/configuration_minicpm4.py @43e27fe5199a says that its
    defaults are the sizes of MiniCPM4-8B; the layers are Llama's. The embedding is tied unless config.json says no."""
    config = {
        "model_type": "minicpm", "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 2, "vocab_size": 73448,
    }  # fmt: skip
    tied, untied = (parse_model({**config, **keys}) for keys in ({}, {"tie_word_embeddings": False}))
    assert (tied.tied, untied.tied) == (True, False)
    assert model_parameters(model_layers(tied)) == 7_884_410_880
    assert model_parameters(model_layers(untied)) == 7_884_410_880 + 73448 * 4096
    with pytest.raises(ProblemsError):
        parse_model({**config, "sparse_config": {"kernel_size": 32}})
