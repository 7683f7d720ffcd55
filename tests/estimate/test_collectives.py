"""NCCL's algorithm for gradients, and its time."""

from dataclasses import replace

import numpy as np
import pytest

from backend.estimate import gradient_exchange
from backend.estimate.time.collectives import algorithm, algorithm_costs, seconds_per_byte
from backend.estimate.time.communication import Group
from backend.estimate.time.efficiency import Machine, default_efficiency
from backend.job.presets import resolve_gpu, resolve_model
from tests.estimate.cases import job

GB, MIB = 1e9, 2**20
EXACT = replace(default_efficiency(), link_share=1.0, network_share=1.0)
A100 = Machine(
    gemm=271e12, single=16e12, peak=312e12, mma_sync=312e12, power=400, memory=2.04e12,
    link=300 * GB, network=25 * GB, host=31 * GB, node=8,
)  # fmt: skip
H100 = replace(A100, link=450 * GB, network=50 * GB, multicast=True)


def of_all_reduce(group: Group, message: float, machine: Machine) -> str:
    return algorithm(algorithm_costs(group, machine, EXACT, all_reduce=True), message)


def seconds(group: Group, message: float, machine: Machine, *, all_reduce: bool) -> float:
    return message * seconds_per_byte(algorithm_costs(group, machine, EXACT, all_reduce=all_reduce), message)


def test_an_all_reduce_is_a_tree_until_bandwidth_counts_more_than_latency():
    everyone = Group(1024, 1)
    assert of_all_reduce(everyone, 25 * MIB, A100) == "tree"
    assert of_all_reduce(everyone, 64 * GB, A100) == "ring"
    # Fewer steps: the ring is worth it earlier.
    assert of_all_reduce(Group(16, 1), 256 * MIB, A100) == "ring"


def test_switches_that_add_up_take_the_place_of_the_tree_where_a_node_has_two_ranks():
    assert of_all_reduce(Group(128, 1), 1 * GB, H100) == "nvls_tree"
    assert of_all_reduce(Group(128, 8), 1 * GB, H100) in ("ring", "tree")


def test_times_are_those_of_the_table_in_nccl():
    message = 25 * MIB
    # 1,024 ranks on 128 nodes. A reduce-scatter by LL128: 896 steps inside, 127 across, 0.92 of eight ports.
    scattered = 1e-6 * (14.0 + 896 * 1.9 + 127 * 4.0) + message * 1023 / 1024 / 0.92 / (200 * GB)
    assert seconds(Group(1024, 1), message, A100, all_reduce=False) == pytest.approx(scattered)
    # Half an all-reduce by a tree, LL128: 7 steps inside, 7 levels across.
    half = 1e-6 * (7.0 + 7 * 1.25 + 7 * 8.5) + message / (0.92 * 120 / 128) / (200 * GB)
    assert seconds(Group(1024, 1), message, A100, all_reduce=True) == pytest.approx(half)
    # Two nodes of H100 swap the sums that their switches made.
    swapped = 1e-6 * (12.5 + 20.9) + GB * 7 / 8 / 2 / (200 * GB)
    assert seconds(Group(8, 2), GB, H100, all_reduce=True) == pytest.approx(swapped)


def test_inside_a_node_it_is_a_ring_of_the_links():
    for all_reduce in (False, True):
        assert seconds(Group(8, 1), MIB, H100, all_reduce=all_reduce) == pytest.approx(MIB * 7 / 8 / (450 * GB))
        assert seconds(Group(1, 1), MIB, H100, all_reduce=all_reduce) == 0


def test_many_groups_at_once_are_each_group_alone():
    sizes, strides = (
        np.array(values) for values in zip((1, 1), (4, 2), (8, 8), (24, 1), (64, 4), (128, 16), strict=True)
    )
    messages = 1e6 * (1 + np.arange(len(sizes)))
    for all_reduce in (False, True):
        together = seconds_per_byte(
            algorithm_costs(Group(sizes, strides), H100, EXACT, all_reduce=all_reduce), messages
        )
        alone = [
            seconds_per_byte(
                algorithm_costs(Group(int(size), int(stride)), H100, EXACT, all_reduce=all_reduce), float(message)
            )
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
    the_job = job({"cluster.nodes": 32, "cluster.gpu": gpu, "model.preset": "qwen3-8b", **changes})
    result = gradient_exchange(the_job, resolve_model(the_job.model), resolve_gpu(the_job.cluster))
    assert result == algorithm
