"""Liger counts as far as its kernels reach, by the engine and the model's type (backend/job/liger.py)."""

from typing import Any

import pytest

from backend.estimate import estimate
from backend.estimate.estimate import Estimate
from backend.estimate.memory.eager_activations import EagerForm, eager_bytes
from backend.estimate.memory.reserved import RESERVED_PER_ALLOCATED
from backend.estimate.model.model_layers import model_layers
from backend.estimate.time.kernels import layer_kernels
from backend.job.liger import NONE, Kernels, kernels_of
from backend.job.model.operators import Activation, Dispatch
from backend.job.presets import resolve_model
from benchmarks.small_models import SEEING, SMALL_MODELS
from tests.estimate.cases import job

GRANITE, GLM = ({"model.preset": None, "model.hf_config": SMALL_MODELS[name]} for name in ("granite", "glm"))
MLLAMA = {"model.preset": None, "model.hf_config": SEEING["mllama"]}
QWEN3, QWEN3_VL, GLM_MOE, QWEN3_NEXT = (
    {"model.preset": name} for name in ("qwen3-8b", "qwen3-vl-8b", "glm-4.5-air", "qwen3-next-80b-a3b")
)


def both(*edits: dict[str, Any]) -> tuple[Estimate, Estimate]:
    """Return the estimates without Liger and with it."""
    plain, fused = (estimate(job({"parallel.recompute": "none"}, *edits, training__liger=on)) for on in (False, True))
    return plain, fused


@pytest.mark.parametrize("engine", ["llamafactory-zero3", "swift-zero3"])
def test_a_type_with_a_fused_loss_has_no_logits_and_saves_less(engine):
    plain, fused = both(QWEN3, {"engine": engine})
    assert fused.stages[0].logits_gib < plain.stages[0].logits_gib / 20
    assert fused.stages[0].activations_gib < plain.stages[0].activations_gib
    assert fused.reserved_gib == pytest.approx(fused.peak_gib * RESERVED_PER_ALLOCATED)


@pytest.mark.parametrize("model", [QWEN3_VL, GLM_MOE, GLM], ids=["qwen3_vl", "glm4_moe", "glm"])
def test_llama_factory_changes_nothing_of_a_type_that_it_does_not_list_or_whose_classes_liger_does_not_patch(model):
    plain, fused = both(model, {"engine": "llamafactory-zero3"})
    assert fused == plain


@pytest.mark.parametrize("model", [GLM_MOE, GLM], ids=["glm4_moe", "glm"])
def test_transformers_trainer_changes_nothing_of_a_type_without_kernels_in_liger(model):
    plain, fused = both(model, {"engine": "swift-zero3"})
    assert fused == plain


@pytest.mark.parametrize(
    ("model", "engine"),
    [(GRANITE, "llamafactory-zero3"), (GRANITE, "swift-zero3"), (MLLAMA, "llamafactory-zero3")],
    ids=["granite", "granite under ms-swift", "mllama"],
)
def test_a_type_whose_loss_is_not_fused_keeps_its_logits_and_saves_less_for_its_norms(model, engine):
    plain, fused = both(model, {"engine": engine})
    assert fused.stages[0].logits_gib == plain.stages[0].logits_gib
    assert fused.stages[0].activations_gib < plain.stages[0].activations_gib
    assert fused.iteration_s < plain.iteration_s


def test_ms_swift_reaches_types_that_llama_factory_does_not_list():
    plain, fused = both(QWEN3_VL, {"engine": "swift-zero3"})
    assert fused.stages[0].logits_gib < plain.stages[0].logits_gib / 20
    assert fused.stages[0].activations_gib < plain.stages[0].activations_gib


def test_norms_of_queries_and_keys_are_replaced_before_a_model_is_built_and_not_in_one_that_is():
    before, after = (both(QWEN3, {"engine": f"{name}-zero3"})[1].stages[0] for name in ("llamafactory", "swift"))
    # fp32 input 4 and the normalised output 2, where Liger keeps the 16-bit input; of 32 + 8 heads of 128 in 36 layers.
    tokens = 4096
    assert (after.activations_gib - before.activations_gib) * 2**30 == pytest.approx(36 * tokens * 40 * 128 * (6 - 2))


@pytest.mark.parametrize(
    ("engine", "extra", "fuses"),
    [
        ("llamafactory-zero3", {"use_dft_loss": True}, False),
        ("llamafactory-zero3", {"use_dft_loss": False, "label_smoothing_factor": 0.0}, True),
        ("llamafactory-zero3", {"label_smoothing_factor": 0.1}, False),
        ("swift-zero3", {"enable_channel_loss": True}, False),
        ("swift-zero3", {"loss_scale": "last_round+hermes"}, False),
        ("swift-zero3", {"loss_scale": "last_round"}, True),
    ],
)
def test_a_trainer_that_computes_the_loss_itself_holds_all_logits(engine, extra, fuses):
    plain, fused = both(QWEN3, {"engine": engine, "extra": extra})
    assert (fused.stages[0].logits_gib < plain.stages[0].logits_gib / 20) is fuses
    assert fused.stages[0].activations_gib < plain.stages[0].activations_gib


@pytest.mark.parametrize(
    ("engine", "model_type", "kernels"),
    [
        ("llamafactory-zero3", "gpt_oss", Kernels(loss=True, norms=True, rope=True)),
        ("llamafactory-zero3", "llava", Kernels(loss=True)),
        ("llamafactory-zero3", "qwen2_vl", Kernels(loss=True, functions=True, rope=True)),
        ("llamafactory-zero3", "glm4", Kernels(loss=True, norms=True, functions=True)),
        ("llamafactory-zero3", "qwen3_next", Kernels(loss=True, norms=True)),
        ("llamafactory-zero3", "mllama", Kernels(norms=True, head_norms=True, functions=True, rope=True)),
        ("llamafactory-zero3", "qwen3_5_moe", NONE),
        ("llamafactory-megatron", "qwen3", NONE),
        ("swift-ddp", "llava", Kernels(loss=True, norms=True, functions=True, rope=True)),
        ("swift-ddp", "qwen2_vl", Kernels(loss=True, norms=True, functions=True)),
        ("swift-ddp", "qwen3_next", Kernels(loss=True, norms=True, functions=True)),
        ("swift-ddp", "qwen3_5_moe", Kernels(loss=True, norms=True, functions=True)),
        ("swift-ddp", "gemma4_text", Kernels(loss=True, norms=True, functions=True)),
        ("swift-ddp", "glm4v_moe", Kernels(loss=True, norms=True, functions=True)),
        ("swift-ddp", "llama4", Kernels(norms=True, functions=True, rope=True)),
        ("swift-ddp", "hunyuan_v1_moe", Kernels(loss=True, norms=True, rope=True)),
        ("swift-ddp", "deepseek_v4", Kernels(loss=True)),
        ("swift-ddp", "internvl_chat", NONE),
    ],
)
def test_the_kernels_of_a_type_are_those_that_ligers_call_leaves_in_its_modules(engine, model_type, kernels):
    assert kernels_of(job(engine=engine, training__liger=True), model_type) == kernels
    assert kernels_of(job(engine=engine), model_type) == NONE


def test_a_loss_made_of_log_probabilities_leaves_ligers_other_kernels():
    dpo = job(engine="llamafactory-zero3", training__stage="dpo", training__liger=True)
    assert kernels_of(dpo, "llama") == Kernels(norms=True, functions=True, rope=True)


def test_a_shared_expert_has_ligers_function_under_ms_swift_and_saves_as_it_does():
    """SwiGLU saves its two inputs and no product beside them. LLaMA-Factory leaves shared experts alone."""
    layers = model_layers(resolve_model(job(QWEN3_NEXT).model))
    kind = next(kind for kind in layers.kinds if any(isinstance(each, Dispatch) for each in kind.operators))
    [shared] = [each for each in kind.operators if isinstance(each, Activation) and each.module == "shared_experts"]
    saved = [eager_bytes(kind, EagerForm(fused_functions=fused)) for fused in (False, True)]
    assert saved[0] - saved[1] == EagerForm().element * shared.width
    moved = [layer_kernels(kind, fused=False, liger=Kernels(functions=fused)).moved_split for fused in (False, True)]
    assert moved[0] - moved[1] == 4 * shared.width
    swift, llamafactory = (both(QWEN3_NEXT, {"engine": f"{name}-zero3"}) for name in ("swift", "llamafactory"))
    assert swift[1].stages[0].activations_gib < llamafactory[1].stages[0].activations_gib
