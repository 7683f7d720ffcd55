"""What the ranks of benchmark.py saw, put together: the cluster's speeds, and who is slower than the others."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from backend.cluster.program_answers import Measured

_Links = Literal["intra", "inter"]

SLOW = 0.8
"""Of the median: who reaches less is named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """A rank or a node that holds up the others."""

    what: Literal["product", "intra", "network", "port"]
    """product: one rank's arithmetic. intra: a node's inner links. network: a node's connection to others. port: the
    connection of GPUs of one local rank, whichever their node."""
    node: int | None = None
    """Node rank."""
    local_rank: int | None = None
    measured: float
    """TFLOP/s for a product, else GB/s."""
    median: float
    """Of all of its kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speeds:
    """What a cluster reached. Bus bandwidths are per GPU, one direction."""

    device: str
    precision: Literal["bf16", "fp16", "fp32"]
    matmul_tflops: float
    intra_node_bus_gb_per_s: float | None
    """None with one rank a node."""
    inter_node_bus_gb_per_s: float | None
    """None with one node."""
    sizes: Mapping[str, Mapping[int, float]]
    """intra, inter: bus bandwidth by size in MiB."""
    slow: tuple[Slow, ...]


def summarise(rows: Sequence[Measured]) -> Speeds:
    """The speeds from every rank's row: medians over ranks, nodes and ports of the best that each reached.

    A collective is as fast as its slowest rank saw it.
    """
    products = {(row["node"], row["local_rank"]): float(row["matmul_tflops"]) for row in rows}
    intra = _best(rows, "intra", lambda row: row["node"])
    inter = _best(rows, "inter", lambda row: row["local_rank"])
    slow = [
        Slow(what="product", node=node, local_rank=local, measured=value, median=usual)
        for (node, local), value, usual in _behind(products)
    ]
    slow += [Slow(what="intra", node=node, measured=value, median=usual) for node, value, usual in _behind(intra)]
    network = _behind(_of_pairs(rows))
    slow += [Slow(what="network", node=node, measured=value, median=usual) for node, value, usual in network]
    slow += [Slow(what="port", local_rank=port, measured=value, median=usual) for port, value, usual in _behind(inter)]
    return Speeds(
        device=rows[0]["device"],
        precision=rows[0]["precision"],
        matmul_tflops=median(products.values()),
        intra_node_bus_gb_per_s=median(intra.values()) if intra else None,
        inter_node_bus_gb_per_s=median(inter.values()) if inter else None,
        sizes={"intra": _by_size(rows, "intra"), "inter": _by_size(rows, "inter")},
        slow=tuple(slow),
    )


def _best(rows: Sequence[Measured], name: _Links, group_of: Callable[[Measured], int]) -> dict[int, float]:
    """Group -> the best over the sizes of what its slowest rank saw."""
    groups: dict[int, dict[str, float]] = {}
    for row in rows:
        seen = groups.setdefault(group_of(row), {})
        for size, value in row[name].items():
            seen[size] = min(float(value), seen.get(size, float("inf")))
    return {group: max(seen.values()) for group, seen in groups.items() if seen}


def _by_size(rows: Sequence[Measured], name: _Links) -> dict[int, float]:
    """MiB -> what the slowest rank saw."""
    sizes = sorted({int(size) for row in rows for size in row[name]})
    return {size: min(float(row[name][str(size)]) for row in rows if str(size) in row[name]) for size in sizes}


def _of_pairs(rows: Sequence[Measured]) -> dict[int, float]:
    """Node -> GB/s with the better of its neighbours, all its ranks together: a slow node is slow with both."""
    sums: dict[tuple[int, str], float] = {}
    for row in rows:
        for other, value in row["pairs"].items():
            sums[row["node"], other] = sums.get((row["node"], other), 0.0) + float(value)
    nodes = sorted({node for node, _ in sums})
    return {node: max(value for (one, _), value in sums.items() if one == node) for node in nodes}


def _behind(values: Mapping[Any, float]) -> Iterable[tuple[Any, float, float]]:
    """(who, figure, median) of those far below the median."""
    if not values:
        return []
    usual = median(values.values())
    return [(who, value, usual) for who, value in sorted(values.items()) if value < SLOW * usual]
