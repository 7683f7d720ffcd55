"""Which algorithm NCCL would take for gradients, and how long it is."""

from dataclasses import replace

import numpy as np
import pytest

from backend.estimate import gradient_exchange
from backend.estimate.collectives import all_reduce_pace, gather_pace, ways
from backend.estimate.communication import Group
from backend.estimate.efficiency import Machine, default_efficiency
from backend.job.presets import resolve_gpu, resolve_model
from tests.estimate.cases import job

GB, MIB = 1e9, 2**20
EXACT = replace(default_efficiency(), link_share=1.0, network_share=1.0)
A100 = Machine(
    products=271e12, peak=312e12, memory=2.04e12, link=300 * GB, network=25 * GB, host=31 * GB, node=8
)  # fmt: skip
H100 = replace(A100, link=450 * GB, network=50 * GB, multicast=True)


def algorithm(group: Group, message: float, machine: Machine) -> str:
    """Of an all-reduce."""
    found = ways(group, machine, EXACT, all_reduce=True)
    return min(found, key=lambda way: way.latency_s + message * way.pace).algorithm


def test_an_all_reduce_is_a_tree_until_bandwidth_counts_more_than_latency():
    everyone = Group(1024, 1)
    assert algorithm(everyone, 25 * MIB, A100) == "tree"
    assert algorithm(everyone, 64 * GB, A100) == "ring"
    # Fewer steps: the ring is worth it earlier.
    assert algorithm(Group(16, 1), 256 * MIB, A100) == "ring"


def test_switches_that_add_up_take_the_place_of_the_tree_where_a_node_has_two_ranks():
    assert algorithm(Group(128, 1), 1 * GB, H100) == "nvls_tree"
    assert algorithm(Group(128, 8), 1 * GB, H100) in ("ring", "tree")


def test_times_are_those_of_the_table_in_nccl():
    message = 25 * MIB
    # 1,024 ranks on 128 nodes. A reduce-scatter by LL128: 896 steps inside, 127 across, 0.92 of eight ports.
    scattered = 1e-6 * (14.0 + 896 * 1.9 + 127 * 4.0) + message * 1023 / 1024 / 0.92 / (200 * GB)
    assert message * gather_pace(Group(1024, 1), message, A100, EXACT) == pytest.approx(scattered)
    # Half an all-reduce by a tree, LL128: 7 steps inside, 7 levels across.
    half = 1e-6 * (7.0 + 7 * 1.25 + 7 * 8.5) + message / (0.92 * 120 / 128) / (200 * GB)
    assert message * all_reduce_pace(Group(1024, 1), message, A100, EXACT) == pytest.approx(half)
    # Two nodes of H100 swap the sums that their switches made.
    swapped = 1e-6 * (12.5 + 20.9) + GB * 7 / 8 / 2 / (200 * GB)
    assert GB * all_reduce_pace(Group(8, 2), GB, H100, EXACT) == pytest.approx(swapped)


def test_inside_a_node_it_is_a_ring_of_the_links():
    for pace in (gather_pace, all_reduce_pace):
        assert pace(Group(8, 1), MIB, H100, EXACT) == pytest.approx(7 / 8 / (450 * GB))
        assert pace(Group(1, 1), MIB, H100, EXACT) == 0


def test_many_groups_at_once_are_each_group_alone():
    sizes, strides = (
        np.array(values) for values in zip((1, 1), (4, 2), (8, 8), (24, 1), (64, 4), (128, 16), strict=True)
    )
    messages = 1e6 * (1 + np.arange(len(sizes)))
    for pace in (gather_pace, all_reduce_pace):
        together = pace(Group(sizes, strides), messages, H100, EXACT)
        alone = [
            pace(Group(int(size), int(stride)), float(message), H100, EXACT)
            for size, stride, message in zip(sizes, strides, messages, strict=True)
        ]
        assert together == pytest.approx(alone)


@pytest.mark.parametrize(
    ("gpu", "changes", "algorithm"),
    [
        # torch's buckets are small.
        ("h100-80g", {"engine": "llamafactory-ddp"}, "tree"),
        ("a100-80g", {"engine": "llamafactory-ddp"}, "tree"),
        # All of a rank's gradients are one message.
        ("h100-80g", {"parallel.distributed_optimizer": False}, "nvls_tree"),
        ("a100-80g", {"parallel.distributed_optimizer": False}, "ring"),
        ("h100-80g", {"parallel.distributed_optimizer": True}, "ring"),
        ("h100-80g", {"cluster.nodes": 1, "parallel.tensor": 8}, None),
        ("cpu", {"parallel.tensor": 1}, None),
    ],
)
def test_a_job_is_told_how_its_gradients_are_summed(gpu, changes, algorithm):
    asked = job({"cluster.nodes": 32, "cluster.gpu": gpu, "model.preset": "qwen3-8b", **changes})
    found = gradient_exchange(asked, resolve_model(asked.model), resolve_gpu(asked.cluster))
    assert found == algorithm
