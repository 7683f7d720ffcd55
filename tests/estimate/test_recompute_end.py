"""Checkpoints that are not reentrant stop when backward has what it needs; a loss that overwrites the logits."""

import pytest

from backend.estimate import estimate
from backend.estimate.memory.engine_memory import memory_traits
from backend.job.presets import gpus, resolve_model
from tests.estimate.cases import job

NOT_REENTRANT = {"use_reentrant_gc": False}
EXPERTS = {"model__preset": "qwen3-30b-a3b"}


def figures(method="full", targets="all", engine="llamafactory-zero2", **values):
    return estimate(job(engine=engine, training__method=method, training__lora__targets=targets, **values))


def recompute_s(*arguments, **values):
    return figures(*arguments, **values).time_s["recompute"]


@pytest.mark.parametrize(("method", "targets"), [("full", "all"), ("lora", "q_proj,v_proj")])
def test_recompute_that_is_not_reentrant_skips_the_last_projection_of_a_layer(method, targets):
    shorter, whole = (recompute_s(method, targets, extra=extra) for extra in (NOT_REENTRANT, {}))
    assert 0.6 * whole < shorter < 0.88 * whole


def test_without_recompute_the_kind_of_checkpoint_changes_nothing():
    one, other = (figures(parallel__recompute="none", extra=extra) for extra in (NOT_REENTRANT, {}))
    assert (one.iteration_s, one.peak_gib) == (other.iteration_s, other.peak_gib)
    assert one.iteration_s < figures(extra=NOT_REENTRANT).iteration_s


@pytest.mark.parametrize(("method", "values"), [("lora", {}), ("full", EXPERTS)])
def test_an_adapter_of_the_last_projection_and_routed_experts_need_it_again(method, values):
    assert recompute_s(method, extra=NOT_REENTRANT, **values) == pytest.approx(recompute_s(method, **values))


def test_checkpoints_of_fsdp_2_are_not_reentrant():
    first, second = (
        recompute_s(engine="llamafactory-fsdp", parallel__fsdp__version=version, training__cutoff_len=8192)
        for version in (1, 2)
    )
    # Version 2 copies what it gathers, which takes a part of what it saves.
    assert second < 0.9 * first


def test_the_cross_entropy_of_transformer_engine_keeps_less_and_moves_less():
    native, of_engine = (
        estimate(job(engine="swift-megatron", parallel__cross_entropy_fusion=True, extra=extra))
        for extra in ({}, {"cross_entropy_fusion_impl": "te"})
    )
    assert of_engine.peak_gib < native.peak_gib
    assert of_engine.iteration_s < native.iteration_s


def test_the_gradient_of_the_newest_transformer_engine_is_in_fp32_beside_the_logits():
    """Transformer Engine 2.18 and later (pytorch/triton/cross_entropy.py: grad_input in torch.float32)."""
    of_engine = job(
        engine="swift-megatron",
        parallel__cross_entropy_fusion=True,
        extra={"cross_entropy_fusion_impl": "te"},
    )
    memory = memory_traits(of_engine, resolve_model(of_engine.model), gpus()["h100-80g"])
    assert (memory.logits_forward_bytes, memory.logits_backward_bytes) == (2 + 4, 4 + 2)
