"""Every term is the sum of its products."""

from math import prod

import pytest

from app.text import LANGUAGES, catalogue
from backend.estimate import estimate_resolved
from backend.estimate.estimate import GIB
from backend.estimate.memory.explain import TERMS, explain
from backend.job.presets import resolve_gpu, resolve_model
from tests.estimate.cases import TP2_PP2_VPP2, TP4, job

JOBS = {
    "TP4": TP4,
    "VPP": TP2_PP2_VPP2,
    "recompute": {"parallel.recompute": "full", "parallel.pipeline": 4},
    "offload": {**TP4, "parallel.optimizer_offload_fraction": 0.5},
    "experts": {"model.preset": "qwen3-30b-a3b", "parallel.pipeline": 2, "parallel.expert": 8},
    "embedding alone on a stage": {
        "model.preset": None,
        "model.hf_config": {
            "model_type": "qwen3",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 512,
        },
        "parallel.pipeline": 4,
        "parallel.account_for_embedding": True,
        "parallel.account_for_loss": True,
    },
    "LoRA": {"engine": "swift-megatron", "training.method": "lora"},
    "FP8": {"extra": {"fp8": "hybrid"}, "parallel.pipeline": 2},
    "FP8 weights": {"cluster.gpu": "b200-180g", "extra": {"fp8": "hybrid", "fp8_param": True}},
    "FP8 DPO": {
        "engine": "swift-megatron",
        "training.stage": "dpo",
        "extra": {"fp8_format": "e4m3", "fp8_recipe": "blockwise", "fp8_param_gather": True},
    },
    "DDP": {"engine": "llamafactory-ddp"},
    "ZeRO-2": {"engine": "llamafactory-zero2"},
    "ZeRO-3": {"engine": "llamafactory-zero3", "model.preset": "qwen3-30b-a3b"},
    "ZeRO-3 offload": {"engine": "llamafactory-zero3-offload"},
    "FSDP": {"engine": "llamafactory-fsdp", "training.method": "lora"},
    "FSDP 1": {
        "engine": "llamafactory-fsdp",
        "model.preset": "llama-3.1-70b",
        "training.method": "lora",
        "parallel.fsdp.version": 1,
    },
    "AdamW in many kernels": {
        "engine": "llamafactory-ddp",
        "training.images_per_sample": 0,
        "training.cutoff_len": 64,
        "training.gradient_accumulation_steps": 1,
        "extra": {"optim": "adamw_torch"},
    },
    "FSDP offload": {"engine": "llamafactory-fsdp", "parallel.fsdp.offload": True, "training.stage": "dpo"},
    "QLoRA": {"engine": "llamafactory-ddp", "training.method": "qlora", "training.liger": True},
    "last layers": {"engine": "llamafactory-ddp", "training.method": "partial", "parallel.recompute": "none"},
    "short samples": {"engine": "llamafactory-zero2", "training.cutoff_len": 64, "training.images_per_sample": 0},
    "accumulating": {"engine": "llamafactory-ddp", "training.gradient_accumulation_steps": 1},
    "KTO": {"engine": "llamafactory-fsdp", "training.stage": "kto"},
    "reward model": {"engine": "llamafactory-zero3", "training.stage": "rm"},
    "KTO of ms-swift": {"engine": "swift-megatron", "training.stage": "kto", "parallel.tensor": 2},
    "reward model of ms-swift": {"engine": "swift-megatron", "training.stage": "rm", "parallel.tensor": 2},
    "DPO": {"training.stage": "dpo", "parallel.pipeline": 2, "parallel.tensor": 2},
    "cached gradients": {"engine": "swift-megatron", "parallel.tensor": 2},
    "MTP": {
        "engine": "swift-megatron",
        "model.preset": "glm-4.5-air",
        "parallel.pipeline": 2,
        "parallel.expert": 8,
        "extra": {"mtp_num_layers": 2},
    },
    "MTP of a model with images": {
        "engine": "swift-megatron",
        "parallel.recompute": "full",
        "parallel.pipeline": 4,
        "parallel.tensor": 2,
        "extra": {"mtp_num_layers": 1},
    },
    "units": {"parallel.recompute": "full", "parallel.recompute_num_layers": 3, "parallel.pipeline": 4},
    "selective": {**TP4, "parallel.recompute": "selective", "parallel.recompute_modules": ("core_attn", "mlp")},
    "fp32": {**TP4, "training.precision": "fp32"},
    "frozen": {**TP4, "training.freeze.language_model": True, "training.freeze.vision_tower": True},
}


@pytest.mark.parametrize("edits", JOBS.values(), ids=JOBS)
def test_parts_add_up_to_their_term_on_every_stage(edits):
    tried = job(edits)
    shape, gpu = resolve_model(tried.model), resolve_gpu(tried.cluster)
    stages = estimate_resolved(tried, shape, gpu).stages
    for stage, parts in zip(stages, explain(tried, shape, gpu), strict=True):
        for term in TERMS:
            total = sum(part.gib for part in parts if part.term == term)
            assert total == pytest.approx(getattr(stage, f"{term}_gib"), abs=1e-4 * stage.peak_gib), term
        # What would be left over is shown as one number without a formula; nothing is.
        assert [part.name for part in parts if part.name == "rest"] == []
        assert all(part.gib == pytest.approx(prod(number for _, number in part.factors) / GIB) for part in parts)


def test_the_weights_of_a_plain_plan_are_two_bytes_a_parameter():
    tried = job(TP4, model__preset="qwen3-8b")
    [parts] = explain(tried, resolve_model(tried.model), resolve_gpu(tried.cluster))
    [weights] = [part for part in parts if part.term == "weights"]
    assert weights.name == "weights_dense"
    assert weights.factors == (("bytes_each", 2), ("dense_trained", 2047915008))


def test_activations_are_layers_in_flight_times_tokens_times_bytes():
    tried = job({"model.preset": "qwen3-8b", "parallel.pipeline": 2, "parallel.tensor": 2})
    first, last = explain(tried, resolve_model(tried.model), resolve_gpu(tried.cluster))
    held = [dict(part.factors)["layer_micro_batches"] for part in (*first, *last) if part.name == "activations_dense"]
    assert held == [36, 18]


def test_every_part_and_factor_has_words():
    requested = set()
    for edits in JOBS.values():
        tried = job(edits)
        parts = [
            part for stage in explain(tried, resolve_model(tried.model), resolve_gpu(tried.cluster)) for part in stage
        ]
        requested |= {f"explain.{part.name}" for part in parts}
        requested |= {f"explain.factor.{name}" for part in parts for name, _ in part.factors}
    for lang in LANGUAGES:
        assert requested <= set(catalogue(lang))


def test_the_vision_towers_share_is_images_in_flight_times_patches():
    first, last = explain_of({"parallel.pipeline": 2, "parallel.tensor": 2})
    [tower] = [dict(part.factors) for part in first if part.name == "activations_tower"]
    assert (tower["micro_batches"], tower["patches"]) == (2, 1764)
    assert not [part for part in last if part.name == "activations_tower"]


def explain_of(edits):
    tried = job(edits)
    return explain(tried, resolve_model(tried.model), resolve_gpu(tried.cluster))
