"""The formula for Hugging Face's modules agrees with the tensors that torch's autograd really saves."""

import pytest

from backend.estimate.memory.eager_activations import EagerForm, eager_bytes
from backend.estimate.memory.saved_activations import fused_bytes
from backend.estimate.model.model_layers import model_layers
from backend.job.job import Model
from backend.job.model import parse_model
from backend.job.presets import resolve_model

SMALL = {
    "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 1, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 128,
}  # fmt: skip
AUTOCAST = EagerForm(residual=4, casts=True)

# Bytes a token that one more layer adds to what torch 2.13.0 saves on CPU with transformers 5.6.0: the storages seen by
# saved_tensors_hooks without weights and their bf16 copies (benchmarks/saved_tensors.py).
MEASURED = {
    ("llama", EagerForm()): 23080,
    ("llama", AUTOCAST): 28200,
    ("qwen3", EagerForm()): 26960,
    ("qwen3", AUTOCAST): 32080,
}


@pytest.mark.parametrize("case", list(MEASURED), ids=["llama bf16", "llama autocast", "qwen3 bf16", "qwen3 autocast"])
def test_a_decoder_layer_keeps_what_torch_keeps(case):
    model_type, form = case
    layer = model_layers(parse_model({"model_type": model_type, **SMALL})).kinds[0]
    assert eager_bytes(layer, form) == pytest.approx(MEASURED[case], rel=0.002)


def test_ligers_kernels_keep_a_norms_input_and_both_halves_of_swiglu():
    """Liger 0.8.2 ops/rms_norm.py and ops/swiglu.py save_for_backward. benchmarks/step_peak.py compares whole steps."""
    layer = model_layers(parse_model({"model_type": "qwen3", **SMALL})).kinds[0]
    statistics, attention, norm_outputs = 4 * 8, 2 * (2 * 8 + 2 * 2) * 64, 2 * 2 * 512
    norms = 2 * (2 * 512 + (8 + 2) * 64)
    form = EagerForm(fused_norms=True, fused_head_norms=True, fused_functions=True)
    assert eager_bytes(layer, form) == norms + norm_outputs + attention + statistics + (2 + 1) * 2 * 1536
    fp32_stream = form._replace(residual=4, casts=True)
    assert eager_bytes(layer, fp32_stream) - eager_bytes(layer, form) == 2 * 2 * 512 + 2 * (3 - 1 + 2 - 1) * 512


# The same, with PEFT 0.18.1: bytes a token of a layer beside frozen weights, their bf16 copies, and what an adapter
# saves of its own width. The hidden size is 256, the FFN 768, with two of four heads for keys and values. CPU's dropout
# keeps its mask in the type of its input; CUDA's in bytes, as here.
ADAPTED = {
    ("all", "casts"): 12824,
    ("all", "plain"): 10768,
    ("all", "drops"): 15120,
    ("q_proj,v_proj", "casts"): 9240,
    ("q_proj,v_proj", "plain"): 8720,
    ("q_proj,v_proj", "drops"): 9744,
}
ADAPTER_FORMS = {
    "casts": EagerForm(trained=False, adapters=True, casts=True),
    "plain": EagerForm(trained=False, adapters=True),
    "drops": EagerForm(trained=False, adapters=True, drops=True),
}


@pytest.mark.parametrize(("targets", "form"), list(ADAPTED), ids=" ".join)
def test_adapters_keep_the_inputs_of_the_modules_that_have_them(targets, form):
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4}
    layer = model_layers(parse_model({"model_type": "llama", **SMALL, **sizes})).kinds[0]
    bytes_kept = eager_bytes(layer, ADAPTER_FORMS[form]._replace(targets=targets))
    assert bytes_kept == pytest.approx(ADAPTED[targets, form], rel=0.001)


@pytest.mark.parametrize(("preset", "measured"), [("qwen3-vl-8b", 43208), ("qwen2.5-vl-7b", 66472)])
def test_a_block_of_the_vision_tower_keeps_what_torch_keeps(preset, measured):
    vision = model_layers(resolve_model(Model(preset=preset))).vision
    assert eager_bytes(vision.blocks[0].kind, EagerForm()) == pytest.approx(measured, rel=0.002)


def test_transformer_engine_keeps_the_sum_of_the_published_formula():
    """8h whole; q and output 4ad, softmax statistics 4a, qk-norm 2(a + k)d and SwiGLU 6f split; keys, values 4kd."""
    saved = fused_bytes(model_layers(resolve_model(Model(preset="qwen3-8b"))).kinds[0])
    assert saved.whole == 8 * 4096
    assert saved.split == 4 * 32 * 128 + 4 * 32 + 2 * (32 + 8) * 128 + 6 * 12288
    assert saved.groups == 4 * 8 * 128


def test_a_norm_after_attention_or_the_ffn_keeps_its_input_alone():
    """mcore-bridge 1.6.5 model/gpts/glm4.py: the output of a separate TENorm is added to the residual stream."""
    saved = fused_bytes(model_layers(resolve_model(Model(preset="glm-4-9b-0414"))).kinds[0])
    assert saved.whole == (8 + 2 * 2) * 4096


def test_experts_keep_each_token_once_for_each_expert_it_visits():
    saved = fused_bytes(model_layers(resolve_model(Model(preset="qwen3-30b-a3b"))).kinds[-1])
    assert saved.dispatched == 8 * 2 * 2048
    assert saved.routed == 8 * 6 * 768 + 8 * 128


def test_a_frozen_layer_drops_what_only_weight_gradients_need():
    layer = model_layers(resolve_model(Model(preset="qwen3-8b"))).kinds[0]
    trained, frozen = fused_bytes(layer), fused_bytes(layer, trained=False)
    assert trained.whole - frozen.whole == 4 * 4096
    assert trained.split - frozen.split == 2 * 12288


@pytest.mark.parametrize(
    ("module", "saved"),
    [("core_attn", 4 * 32), ("mlp", 6 * 12288 + 2 * 4096), ("layernorm", 0), ("moe", 0)],
)
def test_selective_recompute_of_a_dense_layer_saves_what_its_module_holds(module, saved):
    layer = model_layers(resolve_model(Model(preset="qwen3-8b"))).kinds[0]
    with_it, without = fused_bytes(layer), fused_bytes(layer, recomputed=(module,))
    assert with_it.whole + with_it.split - without.whole - without.split == saved
