"""Seconds of an all-reduce, an all-gather or a reduce-scatter, with the algorithm that NCCL would choose.

For each algorithm and protocol NCCL predicts a latency plus the message size over a bandwidth, and takes the smallest
sum (src/graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime, NCCL 2.30, https://github.com/NVIDIA/nccl). The
latencies and the bandwidth factors of the algorithms are NCCL's own. The bandwidth is that of the machine, as
collectives reach it.

An all-reduce is a ring, two binary trees, or trees between nodes whose switches add up the data of their GPUs (NVLink
SHARP). An all-gather and a reduce-scatter are rings. NCCL's alternative for them, PAT, needs one GPU per node, and pays
off only for messages smaller than gradients. Two things are left out: the protocol LL, which is for messages below a
megabyte, and NCCL's correction of trees below 256 MB, which for LL128 is a tenth at most from 16 MB on.
"""

from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy import ndarray

from backend.estimate.array_ops import Number, choose, clip, larger, smaller
from backend.estimate.time.communication import Group
from backend.estimate.time.efficiency import Efficiency, Machine

Algorithm = Literal["ring", "tree", "nvls_tree"]


class _Protocol(NamedTuple):
    """Values of NCCL's tables baseLatencies and hwLatencies in microseconds, and its factor of the bandwidth."""

    share: float
    """Share of the bandwidth."""
    start: float
    inside: float
    """Latency of a step over NVLink."""
    across: float
    """Latency of a step over the network."""


# The protocols Simple and LL128 for a ring and for trees. A ring's step inside a node takes at least the time of the
# host's work for the network (netOverhead).
_PROTOCOLS = (
    (_Protocol(1.0, 8.4, 3.4, 14.0), _Protocol(0.92, 8.4, 4.0, 14.0)),
    (_Protocol(0.92, 14.0, 1.9, 4.0), _Protocol(0.92 * 120 / 128, 14.0, 1.25, 8.5)),
)
_NVLS_TREE = _Protocol(1.0, 0.0, 25.0, 20.9)
_PLATEAU = 1.4
"""Factor of a ring's latency in an all-reduce of large messages with the protocol Simple ("plateau effect")."""


class AlgorithmCost(NamedTuple):
    """Cost of one algorithm with one protocol, for a gather, a reduce-scatter, or half an all-reduce."""

    algorithm: Algorithm
    latency_s: Number
    seconds_per_byte: Number
    """Seconds per byte."""


def algorithm_costs(
    group: Group, machine: Machine, efficiency: Efficiency, *, all_reduce: bool
) -> tuple[AlgorithmCost, ...]:
    """Return the costs from which NCCL chooses. Inside a node this is one ring, with no latency beyond a kernel's
    start."""
    link, network = machine.link * efficiency.link_share, machine.network * efficiency.network_share
    size, stride, multicast = group.size, group.stride, all_reduce and machine.multicast
    if isinstance(size, ndarray) or isinstance(stride, ndarray):
        return _algorithm_costs(size, stride, machine.node, link, network, all_reduce, multicast)
    return _cached_costs(size, stride, machine.node, link, network, all_reduce, multicast)


def seconds_per_byte(costs: tuple[AlgorithmCost, ...], message: Number) -> Number:
    """Return the seconds per byte of a message of this size with the fastest algorithm; 0 for a single rank."""
    _, latency_s, best = costs[0]
    best = latency_s / message + best
    for _, latency_s, other in costs[1:]:
        best = smaller(best, latency_s / message + other)
    return best


def algorithm(costs: tuple[AlgorithmCost, ...], message: float) -> Algorithm:
    """Return the fastest algorithm for a message of this size."""
    return min(costs, key=lambda way: way.latency_s + message * way.seconds_per_byte).algorithm


def _algorithm_costs(
    size: Number, stride: Number, node: int, link: float, network: float, all_reduce: bool, multicast: bool
) -> tuple[AlgorithmCost, ...]:
    local = clip(node / stride, 1, size)
    nodes = np.ceil(size / local)
    across = nodes > 1
    inside = (size - 1) / size / link
    if not across.any():
        return (AlgorithmCost("ring", 0.0, inside),)
    ring = (size - 1) / size / smaller(link, network * local)
    costs = []

    def add(algorithm: Algorithm, latency_us: Number, seconds_per_byte: Number) -> None:
        costs.append(
            AlgorithmCost(algorithm, choose(across, 1e-6 * latency_us, 0.0), choose(across, seconds_per_byte, inside))
        )

    for simple, (by_ring, by_tree) in zip((True, False), _PROTOCOLS, strict=True):
        # With one rank per node nothing hides the latency of the network.
        step = choose(local > 1, by_ring.across, by_tree.across)
        latency = (size - nodes) * by_ring.inside + (nodes - 1) * step
        if all_reduce:
            latency = (_PLATEAU if simple else 1.0) * (by_ring.start / 2 + latency)
        else:
            latency = by_ring.start + latency
        add("ring", latency, ring / by_ring.share)
    if not all_reduce:
        return tuple(costs)
    levels = np.floor(np.log2(nodes))
    for _, tree in _PROTOCOLS:
        latency = tree.start / 2 + (local - 1) * tree.inside + levels * tree.across
        add("tree", latency, 1 / tree.share / smaller(link, network * local))
    if multicast:
        latency = _NVLS_TREE.inside / 2 + levels * _NVLS_TREE.across
        # Two nodes swap their sums; more nodes pass them up and down. With one rank per node a switch adds nothing up.
        seconds_per_byte = larger(inside, ring * choose(nodes == 2, 0.5, 1.0))
        add("nvls_tree", choose(local > 1, latency, np.inf), seconds_per_byte)
    return tuple(costs)


@lru_cache(maxsize=4096)
def _cached_costs(
    size: float, stride: float, node: int, link: float, network: float, all_reduce: bool, multicast: bool
) -> tuple[AlgorithmCost, ...]:
    """Return the costs of one group of plain numbers, from a cache."""
    costs = _algorithm_costs(np.float64(size), np.float64(stride), node, link, network, all_reduce, multicast)
    return tuple(
        AlgorithmCost(algorithm, float(latency_s), float(seconds_per_byte))
        for algorithm, latency_s, seconds_per_byte in costs
    )
