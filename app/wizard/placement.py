"""The map of a plan: the groups of ranks that communicate, and their nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.wizard.hosts import node_name
from backend.job.job import Job, Parallel

SHOWN_NODES = 64
"""Maximum number of nodes on the map. A larger cluster repeats the same pattern."""


def placement(job: Job) -> dict[str, Any]:
    """Return each rank's group of each kind, and the number of nodes of the groups.

    The order of ranks is megatron-core's default, tp-cp-ep-dp-pp (parallel_state.py initialize_model_parallel): TP
    neighbours are adjacent, pipeline stages are furthest apart. Experts have the order etp-ep-dp-pp.
    """
    sizes = job.parallel if job.traits.is_megatron else Parallel()
    dense = _coordinates(job.world_size, tensor=sizes.tensor, context=sizes.context, data=job.data_parallel)
    experts = _coordinates(job.world_size, expert_tensor=sizes.expert_tensor, expert=sizes.expert,
                     rest=max(1, job.world_size // (sizes.expert_tensor * sizes.expert * sizes.pipeline)))  # fmt: skip
    groups = {
        "tensor": _groups(dense, "tensor"),
        "pipeline": _groups(dense, "last"),
        "data": _groups(dense, "data"),
        "context": _groups(dense, "context"),
        "expert": _groups(experts, "expert"),
    }
    group_sizes = {"tensor": sizes.tensor, "pipeline": sizes.pipeline, "data": job.data_parallel,
                   "context": sizes.context, "expert": sizes.expert}  # fmt: skip
    kinds = [name for name, size in group_sizes.items() if size > 1] or ["data"]
    per_node = job.cluster.gpus_per_node
    shown = min(job.cluster.nodes, SHOWN_NODES)
    hosts = [node_name(host) for host in job.cluster.hosts[:shown]]
    return {
        "kinds": kinds,
        "nodes": hosts + [""] * (shown - len(hosts)),
        "per_node": per_node,
        "left_out": job.cluster.nodes - shown,
        "groups": {name: groups[name][: shown * per_node] for name in kinds},
        "spans": {name: _span(groups[name], per_node) for name in kinds},
    }


def _coordinates(world: int, **sizes: int) -> list[dict[str, int]]:
    """Return each rank's coordinates. The first size changes fastest; `last` is the remaining quotient."""
    ranks = []
    for rank in range(world):
        coordinates, quotient = {}, rank
        for name, size in sizes.items():
            coordinates[name], quotient = quotient % size, quotient // size
        ranks.append({**coordinates, "last": quotient})
    return ranks


def _groups(ranks: Sequence[Mapping[str, int]], along: str) -> list[int]:
    """Return the number of each rank's group. Ranks of a group differ only in the coordinate `along`."""
    numbers: dict[tuple[int, ...], int] = {}
    return [
        numbers.setdefault(tuple(value for name, value in rank.items() if name != along), len(numbers))
        for rank in ranks
    ]


def _span(groups: Sequence[int], per_node: int) -> dict[str, int]:
    nodes: dict[int, set[int]] = {}
    for rank, group in enumerate(groups):
        nodes.setdefault(group, set()).add(rank // per_node)
    return {
        "groups": len(nodes),
        "ranks": len(groups) // len(nodes),
        "nodes": max(map(len, nodes.values())),
    }
