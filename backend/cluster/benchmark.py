"""Summary of benchmark.py's results of all ranks: the cluster's speeds, and its slow ranks and nodes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeVar

from backend.cluster.program_answers.hardware import Measured

_Links = Literal["intra", "inter"]
Rank = TypeVar("Rank", int, tuple[int, int])
"""The rank of a node, or (node rank, local rank)."""

SLOW = 0.8
"""Part of the median. A rank or a node below it is slow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """A rank or a node that makes the others wait."""

    what: Literal["product", "intra", "network", "port"]
    """product: GEMM of one rank. intra: connections inside a node. network: a node's connection to other nodes. port:
    connections of the GPUs of one local rank on all nodes."""
    node: int | None = None
    """Node rank."""
    local_rank: int | None = None
    measured: float
    """TFLOP/s for a product, or else GB/s."""
    median: float
    """Median of all figures of this kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speeds:
    """Measured speeds of a cluster. Bus bandwidths are per GPU, one direction."""

    device: str
    precision: Literal["bf16", "fp16", "fp32"]
    matmul_tflops: float
    intra_node_bus_gb_per_s: float | None
    """None with one rank per node."""
    inter_node_bus_gb_per_s: float | None
    """None with one node."""
    sizes: Mapping[str, Mapping[int, float]]
    """intra, inter: bus bandwidth by size in MiB."""
    slow: tuple[Slow, ...]


def summarise(rows: Sequence[Measured]) -> Speeds:
    """Return the speeds: medians over ranks, nodes and ports of the best figure of each.

    The slowest rank of a collective decides its figure.
    """
    gemms = {(row["node"], row["local_rank"]): float(row["matmul_tflops"]) for row in rows}
    intra = _best(rows, "intra", lambda row: row["node"])
    inter = _best(rows, "inter", lambda row: row["local_rank"])
    slow = [
        Slow(what="product", node=node, local_rank=local, measured=value, median=middle)
        for (node, local), value, middle in _slow_values(gemms)
    ]
    slow += [
        Slow(what="intra", node=node, measured=value, median=middle) for node, value, middle in _slow_values(intra)
    ]
    network = _slow_values(_pair_speeds(rows))
    slow += [Slow(what="network", node=node, measured=value, median=middle) for node, value, middle in network]
    ports = _slow_values(inter)
    slow += [Slow(what="port", local_rank=port, measured=value, median=middle) for port, value, middle in ports]
    return Speeds(
        device=rows[0]["device"],
        precision=rows[0]["precision"],
        matmul_tflops=median(gemms.values()),
        intra_node_bus_gb_per_s=median(intra.values()) if intra else None,
        inter_node_bus_gb_per_s=median(inter.values()) if inter else None,
        sizes={"intra": _by_size(rows, "intra"), "inter": _by_size(rows, "inter")},
        slow=tuple(slow),
    )


def _best(rows: Sequence[Measured], name: _Links, group_of: Callable[[Measured], int]) -> dict[int, float]:
    """Return each group's best figure over the sizes. A size has the figure of its slowest rank."""
    groups: dict[int, dict[str, float]] = {}
    for row in rows:
        slowest = groups.setdefault(group_of(row), {})
        for size, value in row[name].items():
            slowest[size] = min(float(value), slowest.get(size, float("inf")))
    return {group: max(slowest.values()) for group, slowest in groups.items() if slowest}


def _by_size(rows: Sequence[Measured], name: _Links) -> dict[int, float]:
    """Return the figure of the slowest rank by size in MiB."""
    sizes = sorted({int(size) for row in rows for size in row[name]})
    return {size: min(float(row[name][str(size)]) for row in rows if str(size) in row[name]) for size in sizes}


def _pair_speeds(rows: Sequence[Measured]) -> dict[int, float]:
    """Return each node's GB/s with its faster neighbour, summed over its ranks. A slow node is slow with both."""
    sums: dict[tuple[int, str], float] = {}
    for row in rows:
        for other, value in row["pairs"].items():
            sums[row["node"], other] = sums.get((row["node"], other), 0.0) + float(value)
    nodes = sorted({node for node, _ in sums})
    return {node: max(value for (first, _), value in sums.items() if first == node) for node in nodes}


def _slow_values(values: Mapping[Rank, float]) -> Iterable[tuple[Rank, float, float]]:
    """Return (rank or node, figure, median) of each that is far below the median."""
    if not values:
        return []
    middle = median(values.values())
    return [(rank_or_node, value, middle) for rank_or_node, value in sorted(values.items()) if value < SLOW * middle]
