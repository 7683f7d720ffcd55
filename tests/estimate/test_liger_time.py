"""Liger's kernels take less time than Hugging Face's modules, but its loss reads the output layer for every chunk."""

import pytest

from backend.estimate import estimate
from backend.estimate.model.load import Load
from backend.estimate.model.model_layers import model_layers
from backend.estimate.time.chunked_loss import chunks
from backend.estimate.time.kernels import layer_kernels
from backend.estimate.time.operator_kernels import LIGER_ROPE_STARTED, ROPE_STARTED
from backend.job.liger import ALL
from backend.job.model.operators import Attention
from backend.job.presets import resolve_model
from tests.estimate.cases import job

DDP = {"engine": "llamafactory-ddp", "model.preset": "qwen3-8b", "training.gradient_accumulation_steps": 1}
LIGER = {**DDP, "training.liger": True}
LAYERS = model_layers(resolve_model(job(DDP).model))
MODULES = layer_kernels(LAYERS.kinds[0], fused=False)
KERNELS = layer_kernels(LAYERS.kinds[0], fused=False, liger=ALL)


@pytest.mark.parametrize("name", ["moved_split", "moved_whole", "moved_back_split", "moved_back_whole"])
def test_a_layer_moves_less_with_ligers_kernels(name):
    assert 0 < getattr(KERNELS, name) < getattr(MODULES, name)


def test_two_norms_of_the_hidden_state_move_what_ligers_kernels_read_and_write():
    hidden = LAYERS.output.hidden
    assert MODULES.moved_whole - KERNELS.moved_whole == pytest.approx(2 * hidden * (36 - 4))
    assert MODULES.moved_back_whole - KERNELS.moved_back_whole == pytest.approx(2 * hidden * (92 - 6))


def test_rotary_embedding_has_a_kernel_of_its_own():
    attention = next(each for each in LAYERS.kinds[0].operators if isinstance(each, Attention))
    without = layer_kernels(LAYERS.kinds[0], fused=False, liger=ALL._replace(rope=False))
    rotated = (attention.heads + attention.kv_heads) * attention.key_dim
    assert without.moved_split - KERNELS.moved_split == pytest.approx((16 - 4) * rotated)
    assert without.small_kernels - KERNELS.small_kernels == ROPE_STARTED[0] - LIGER_ROPE_STARTED[0]


def test_products_stay_as_they_are_with_ligers_kernels():
    for name in ("gemm_split", "weights_split", "operands_split", "attention", "kernels", "modules", "tensors"):
        assert getattr(KERNELS, name) == getattr(MODULES, name)


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "hidden", "count"),
    [
        # The example in Liger's own comment: a factor of 8, so 2,048 tokens a chunk.
        (16_384, 32_000, 4_096, 8),
        # A factor of 149, so 14 tokens and 16 in a chunk.
        (2_048, 151_936, 1_024, 128),
        (1, 151_936, 1_024, 1),
    ],
)
def test_chunks_are_as_many_as_in_ligers_loop(tokens, vocabulary, hidden, count):
    assert chunks(vocabulary, hidden, Load(tokens=tokens, length=tokens)) == count


def liger_s(**values: object) -> float:
    """Return the seconds of a step with Liger."""
    return float(estimate(job(LIGER, **values)).iteration_s or 0.0)


def test_small_micro_batches_gain_less_from_liger():
    gains = [
        estimate(job(DDP, training__micro_batch_size=size)).iteration_s / liger_s(training__micro_batch_size=size)  # type: ignore[operator]
        for size in (1, 8)
    ]
    assert gains[0] < gains[1]
    assert gains[1] > 1


def test_a_type_that_liger_leaves_alone_takes_as_long_as_without_it():
    """LLaMA-Factory does not list qwen3_vl."""
    plain, liger = (
        estimate(job(DDP, model__preset="qwen3-vl-8b", training__liger=on)).iteration_s for on in (False, True)
    )
    assert plain == liger
