"""Which ranks talk to which, and on which nodes they are: the map of a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.wizard.hosts import node_name
from backend.job.job import Job, Parallel

SHOWN_NODES = 64
"""Nodes on the map; a larger cluster repeats the same picture."""


def placement(job: Job) -> dict[str, Any]:
    """Which group of each kind every rank belongs to, and over how many nodes the groups spread.

    The order of ranks is megatron-core's default, tp-cp-ep-dp-pp (parallel_state.py initialize_model_parallel): TP
    neighbours are next to each other, pipeline stages furthest apart. Experts order etp-ep-dp-pp in the same ranks.
    """
    sizes = job.parallel if job.traits.is_megatron else Parallel()
    dense = _split(job.world_size, tensor=sizes.tensor, context=sizes.context, data=job.data_parallel)
    experts = _split(job.world_size, expert_tensor=sizes.expert_tensor, expert=sizes.expert,
                     rest=max(1, job.world_size // (sizes.expert_tensor * sizes.expert * sizes.pipeline)))  # fmt: skip
    groups = {
        "tensor": _groups(dense, "tensor"),
        "pipeline": _groups(dense, "last"),
        "data": _groups(dense, "data"),
        "context": _groups(dense, "context"),
        "expert": _groups(experts, "expert"),
    }
    sized = {"tensor": sizes.tensor, "pipeline": sizes.pipeline, "data": job.data_parallel, "context": sizes.context,
             "expert": sizes.expert}  # fmt: skip
    kinds = [name for name, size in sized.items() if size > 1] or ["data"]
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


def _split(world: int, **sizes: int) -> list[dict[str, int]]:
    """Every rank's coordinates: the first size changes fastest; `last` is what remains."""
    ranks = []
    for rank in range(world):
        coordinates, rest = {}, rank
        for name, size in sizes.items():
            coordinates[name], rest = rest % size, rest // size
        ranks.append({**coordinates, "last": rest})
    return ranks


def _groups(ranks: Sequence[Mapping[str, int]], along: str) -> list[int]:
    """Ranks that differ in one coordinate alone talk to each other: the number of each rank's group."""
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
        "nodes": max(len(found) for found in nodes.values()),
    }
