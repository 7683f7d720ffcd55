"""LLaMA-Factory's neat_packing without FlashAttention 2: every pack has a mask of all pairs of its tokens."""

import pytest

from backend.estimate import estimate
from tests.estimate.cases import job

PACKED = {
    "engine": "llamafactory-zero2",
    "model.preset": "qwen3-8b",
    "training.packing": True,
    "training.cutoff_len": 8192,
    "training.micro_batch_size": 2,
    "training.gradient_accumulation_steps": 4,
}
LENGTH = 8192


def memory(*edits, **extra):
    return estimate(job(PACKED, *edits, extra=extra)).stages[0]


def test_the_masks_of_all_micro_batches_of_a_step_are_on_the_gpu():
    """transformers moves the micro-batches of a step there together."""
    more = memory(neat_packing=True).workspace_gib - memory().workspace_gib
    assert more == pytest.approx(4 * 2 * 2 * LENGTH**2 / 2**30, rel=0.01)


def test_flash_attention_2_and_other_engines_need_no_mask():
    for edits, extra in (({}, {"flash_attn": "fa2"}), ({"training.stage": "pt"}, {})):
        assert memory(edits, neat_packing=True, **extra).peak_gib == memory(edits, **extra).peak_gib


def test_with_a_mask_sdpa_saves_keys_and_values_of_every_query_head():
    whole = {"parallel.recompute": "none"}
    more = memory(whole, neat_packing=True).activations_gib - memory(whole).activations_gib
    assert more == pytest.approx(36 * 2 * LENGTH * 2 * 2 * (32 - 8) * 128 / 2**30, rel=0.01)
    eager = {"flash_attn": "disabled"}
    assert memory(whole, neat_packing=True, **eager).activations_gib == memory(whole, **eager).activations_gib
