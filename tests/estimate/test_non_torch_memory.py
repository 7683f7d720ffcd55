"""Memory outside torch's allocator grows with the communicators of a plan."""

import numpy as np
import pytest

from backend.estimate import estimate
from backend.estimate.memory.non_torch_memory import FIRST_GIB, GROUP_GIB, PAIR_GIB, PEER_GIB
from backend.planning import enumerate_plans
from tests.estimate.cases import TP4, job

EXPERTS = {"model.preset": "qwen3-30b-a3b"}


@pytest.mark.parametrize("engine", ["ddp", "zero2", "zero3", "fsdp"])
def test_hugging_face_engines_have_one_communicator(engine):
    assert estimate(job(engine=f"llamafactory-{engine}", model__preset="qwen3-8b")).outside_gib == FIRST_GIB == 1.5


@pytest.mark.parametrize(
    ("edits", "groups"),
    [
        # TP, copies for the loss and for gradients, all ranks for the norm.
        (TP4, 4 * GROUP_GIB),
        ({**TP4, "parallel.distributed_optimizer": False}, 4 * GROUP_GIB),
        ({"parallel.distributed_optimizer": False}, 2 * GROUP_GIB),
        ({**TP4, "parallel.pipeline": 2}, 4 * GROUP_GIB + PAIR_GIB),
        ({**TP4, "parallel.pipeline": 8}, 3 * GROUP_GIB),
        ({"parallel.context": 2}, 3 * GROUP_GIB + PAIR_GIB),
        # ms-swift asks the ranks of one copy for the memory that they use.
        ({**TP4, "engine": "swift-megatron"}, 5 * GROUP_GIB),
        # With EP also the exchange, the counts of tokens and the experts' gradients.
        ({**EXPERTS, "parallel.expert": 8}, 5 * GROUP_GIB + 7 * PEER_GIB),
        ({**EXPERTS, "parallel.expert": 2}, 4 * GROUP_GIB + PAIR_GIB + PEER_GIB),
        # Peers on other nodes share buffers.
        ({**EXPERTS, "parallel.expert": 16}, 5 * GROUP_GIB + PAIR_GIB + 7 * PEER_GIB),
        ({**EXPERTS, "parallel.expert": 32}, 5 * GROUP_GIB + 7 * PEER_GIB),
    ],
)
def test_every_group_of_a_megatron_plan_has_buffers_of_its_own(edits, groups):
    assert estimate(job(edits)).outside_gib == pytest.approx(FIRST_GIB + groups)


@pytest.mark.parametrize(("link", "share"), [(900, 1), (600, 1), (400, 2 / 3), (64, 64 / 600)])
def test_slower_links_have_fewer_channels_and_these_less_memory(link, share):
    result = estimate(job(TP4, cluster__intra_node_gb_per_s=float(link)))
    assert result.outside_gib == pytest.approx(FIRST_GIB + share * 4 * GROUP_GIB)


def test_what_the_job_says_lies_outside_does_so_in_every_plan():
    with_memory = job(EXPERTS, cluster__outside_gib=3.0)
    assert estimate(with_memory).outside_gib == 3.0
    figures = enumerate_plans(with_memory).figures_of(slice(0, 50))
    assert set(figures.outside_gib.tolist()) == {3.0}


def test_many_plans_at_once_have_outside_what_each_has_alone():
    plans = enumerate_plans(job(EXPERTS))
    ranks = np.arange(0, len(plans), len(plans) // 20)
    figures = plans.figures_of(ranks)
    alone = [plans[int(rank)].estimate for rank in ranks]
    assert figures.outside_gib == pytest.approx([item.outside_gib for item in alone])
    assert figures.fits.tolist() == [item.fits for item in alone]
    assert len({*figures.outside_gib.round(3).tolist()}) > 4
