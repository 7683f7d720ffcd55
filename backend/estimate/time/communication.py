"""Seconds of collectives, from the bytes of each rank and the topology of the group.

Ranks have the order of Megatron-Core: TP varies first, then CP, then DP, then PP. For experts the order is ETP, EP,
copies. Neighbours in a group are `stride` ranks apart. Inside a node a group uses the node's links. A ring that leaves
the node shares the node's network ports with the other rings of the node. The slowest edge of a ring sets its speed.
"""

from backend.estimate.array_ops import Number, choose, clip, larger, smaller
from backend.estimate.frozen_dataclass import positional_dataclass
from backend.estimate.time.efficiency import Efficiency, Machine

DEEPEP_LINK_SHARE = 0.8
"""Measured share of the links inside a node: 153 to 158 GB/s of an H800's 200, 726 to 740 of a B200's 900
(https://github.com/deepseek-ai/DeepEP, README.md and docs/legacy.md)."""

DEEPEP_NETWORK_SHARE = 0.9
"""Measured share of the network ports, from the same source: 90 and 61 GB/s to 2 and 4 nodes, of which a half and a
fourth stays inside, of 50."""


@positional_dataclass
class Group:
    """Ranks that communicate."""

    size: Number
    stride: Number
    """Ranks between two neighbours of the group."""


def is_single_rank(size: Number) -> bool:
    """Return whether a group is one rank in every plan."""
    return type(size) is int and size == 1


def ring_seconds(received: Number, group: Group, machine: Machine, efficiency: Efficiency) -> Number:
    """Return the seconds of an all-gather or a reduce-scatter of `received` bytes in total.

    Each rank passes on all but its own part. An all-reduce is a reduce-scatter and then an all-gather.
    """
    return received * ring_seconds_per_byte(group, machine, efficiency)


def ring_seconds_per_byte(group: Group, machine: Machine, efficiency: Efficiency) -> Number:
    """Return the seconds per byte of `ring_seconds`; 0 for a single rank."""
    return (group.size - 1) / group.size / _ring_speed(group, machine, efficiency)


def exchange_seconds(sent: Number, group: Group, machine: Machine, efficiency: Efficiency) -> Number:
    """Return the seconds of an all-to-all in which each rank sends `sent` bytes, its own part included.

    Traffic inside the node and traffic between nodes run at the same time.
    """
    local = _local(group, machine)
    inside = sent * (local - 1) / group.size / (machine.link * efficiency.link_share)
    outside = sent * (1 - local / group.size) / (machine.network * efficiency.network_share)
    return larger(inside, outside)


def merged_exchange_seconds(sent: Number, copies: Number, group: Group, machine: Machine) -> Number:
    """Return the seconds of the all-to-all of DeepEP or HybridEP; `sent` is `copies` copies of every token.

    The copies go to experts that are chosen evenly. Copies for the same rank, or for the same other node, travel as
    one.
    """
    local = _local(group, machine)
    inside = sent * _merged(group.size, copies) * (local - 1) / group.size / (machine.link * DEEPEP_LINK_SHARE)
    nodes = group.size / local
    leaving = sent * _merged(nodes, copies) * (1 - 1 / nodes)
    return larger(inside, leaving / (machine.network * DEEPEP_NETWORK_SHARE))


def _merged(places: Number, copies: Number) -> Number:
    """Return the number of destinations that get at least one copy, over the number of copies."""
    return places * (1 - (1 - 1 / places) ** copies) / copies


def send_seconds(size: Number, group: Group, machine: Machine, efficiency: Efficiency) -> Number:
    """Return the seconds of one message to the next stage, over the slowest boundary between stages."""
    link, network = machine.link * efficiency.link_share, machine.network * efficiency.network_share
    speed = choose(group.size * group.stride <= machine.node, link, smaller(link, network))
    return size / speed


def exposed(seconds: Number, window: Number, efficiency: Efficiency) -> Number:
    """Return the communication time that remains visible beside `window` seconds of computation."""
    return seconds - efficiency.overlap_share * smaller(seconds, window)


def _local(group: Group, machine: Machine) -> Number:
    """Return the ranks of a group in one node."""
    return clip(machine.node / group.stride, 1, group.size)


def _ring_speed(group: Group, machine: Machine, efficiency: Efficiency) -> Number:
    link = machine.link * efficiency.link_share
    local = _local(group, machine)
    # The ring leaves the node once. The members in the node together use the ports of as many GPUs.
    leaving = smaller(link, machine.network * efficiency.network_share * local)
    return choose(local >= group.size, link, leaving)
