"""Copies between the buffers of sharded engines take time that no token adds to."""

import pytest

from backend.estimate import estimate
from backend.estimate.model.model_layers import model_layers
from backend.estimate.time.efficiency import MEMORY_SHARE
from backend.job.job import Model
from backend.job.presets import gpus, resolve_model
from tests.estimate.cases import job

LLAMA = model_layers(resolve_model(Model(preset="llama-3.1-8b")))
WEIGHTS = LLAMA.count * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + LLAMA.embedding
COPY_S = 2 * 2 * WEIGHTS / (MEMORY_SHARE * gpus()["h100-80g"].hbm_gb_per_s * 1e9)
"""Seconds to read and write all projections in 16 bits."""
MICRO_BATCHES = 8


def parts(engine="llamafactory-fsdp", **values):
    base = {"model__preset": "llama-3.1-8b", "training__images_per_sample": 0, "cluster__stack": "tuned"}
    base |= {"training__cutoff_len": 8192, "parallel__recompute": "none"}
    return estimate(job(**(base | {"engine": engine} | values))).time_s


def test_fsdp_2_copies_gradients_once_a_step_and_fsdp_1_joins_them_in_every_micro_batch():
    """Both reduce once; FSDP 2 also copies weights twice in a micro-batch, FSDP 1 never."""
    first, second = (parts(parallel__fsdp__version=version)["compute"] for version in (1, 2))
    assert second - first == pytest.approx(MICRO_BATCHES * (2 - 1) * COPY_S, rel=0.001)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_weights_that_stay_gathered_save_one_copy_with_and_without_recompute(recompute):
    freed, kept = (
        parts(parallel__recompute=recompute, parallel__fsdp__reshard_after_forward=free) for free in (True, False)
    )
    saved = sum(freed[part] - kept[part] for part in ("compute", "recompute") if part in freed)
    assert saved == pytest.approx(MICRO_BATCHES * COPY_S, rel=0.001)


def test_zero_3_copies_nothing_on_one_gpu():
    """DeepSpeed's NoGatherCoalescedHandle."""
    alone = {"cluster__nodes": 1, "cluster__gpus_per_node": 1}
    one, two = (
        parts(engine="llamafactory-zero3", **{**alone, "cluster__gpus_per_node": gpus_per_node})["compute"]
        for gpus_per_node in (1, 2)
    )
    assert two - one == pytest.approx(2 * MICRO_BATCHES * COPY_S, rel=0.001)
