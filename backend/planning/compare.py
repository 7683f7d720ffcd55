"""Comparison of plans: the cost of a plan against the best one, and why the recommended one is recommended.

A sentence is a code with figures.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backend.estimate.batched import PARTS
from backend.planning.lazy_sort import LEAST
from backend.planning.plans import Plans


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a plan costs against another one, by default the first."""

    over_gib: float
    """GPU memory that the plan lacks; 0 if it fits."""
    over_host_gib: float
    """RAM of a node that the plan lacks; 0 if it fits or if the RAM is not known."""
    slower: float | None
    """Share of the other plan's speed that is lost; negative if the plan is faster. None if times are not known."""
    part: str | None
    """The part of the iteration that grew most, one of PARTS."""


def cost(plans: Plans, rank: int, against: int = 0) -> Cost:
    """Return the cost of one plan against another one; by default, the first."""
    pair = np.array([rank, against])
    figures, times = plans.figures_of(pair), plans.parts_s(pair)
    over_gib = float(figures.need_gib[0]) - plans.gpu.memory_gib
    host, memory_gib = figures.host_memory_gib, plans.job.cluster.host_memory_gib
    over_host = 0.0 if host is None or memory_gib is None else float(host[0]) - memory_gib
    memory = {"over_gib": max(0.0, over_gib), "over_host_gib": max(0.0, over_host)}
    if figures.iteration_s is None or times is None:
        return Cost(**memory, slower=None, part=None)
    grown = times[:, 0] - times[:, 1]
    slower = 1 - float(figures.iteration_s[1] / figures.iteration_s[0])
    return Cost(**memory, slower=slower, part=PARTS[int(grown.argmax())])


def best_of_splits(plans: Plans, limit: int) -> list[int]:
    """Return the rank of the best plan of each split of the model on each engine, best first, at most `limit`.

    Plans of one split differ in micro-batch, recompute, sequence parallel, distributed optimizer and whether embedding
    and loss count as layers.
    """
    count, best = LEAST, np.zeros(0, np.intp)
    while len(best) < limit and len(best) < len(plans):
        split = plans.splits_of(slice(count))
        best = np.sort(np.unique(split, return_index=True)[1])
        if len(split) == len(plans):
            break
        count *= 4
    return [int(rank) for rank in best[:limit]]


def front(plans: Plans, limit: int) -> list[int]:
    """Return the ranks of the plans on the Pareto front of memory and speed, best first, at most `limit`."""
    ranks = (plans.order.rank(index) for index in plans.front[:limit].tolist())
    return [rank for rank in ranks if rank is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """A sentence of the catalogue, under `why.<code>`."""

    code: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of the placeholders."""


def why_best(plans: Plans, rank: int = 0) -> list[Sentence]:
    """Return why the plan of this rank is recommended: the largest parts of its time, and the cost of other sizes.

    The list is empty if times are not known.
    """
    times = plans.parts_s(slice(rank, rank + 1))
    if not len(plans) or times is None:
        return []
    shares = times[:, 0] / times[:, 0].sum()
    parts = [(PARTS[index], float(shares[index])) for index in np.argsort(-shares)[:3] if shares[index] > 0.005]
    return [Sentence(code="spends", values={"parts": parts}), *_neighbours(plans, rank)]


MIN_SLOWER = 0.005
"""Share of speed by which two plans must differ to be compared in a sentence."""


def _neighbours(plans: Plans, own_rank: int) -> Iterator[Sentence]:
    """Compare with the best plan that has the next smaller or larger TP, PP or micro-batch."""
    engine, row = (int(index[0]) for index in plans.at(slice(own_rank, own_rank + 1)))
    space = plans.spaces[engine]
    for name, path in (("TP", "parallel.tensor"), ("PP", "parallel.pipeline"), ("mbs", "training.micro_batch_size")):
        if path not in space.axis_of:
            continue
        axis, item = space.axis_of[path]
        own, sizes = space.value(path, row), sorted(values[item] for values in space.axes[axis].values)
        for others in ([size for size in reversed(sizes) if size < own], [size for size in sizes if size > own]):
            # Not every size is legal.
            ranks = ((size, plans.first_of(engine, path, size)) for size in others)
            size, rank = next((size_rank for size_rank in ranks if size_rank[1] is not None), (own, None))
            if rank is None:
                continue
            sentence = _neighbour(plans, name, size, rank, own_rank, is_smaller=size < own)
            if "over_gib" in sentence.values or sentence.values["slower"] > MIN_SLOWER:
                yield sentence


def _neighbour(plans: Plans, name: str, size: int, rank: int, own_rank: int, *, is_smaller: bool) -> Sentence:
    """Compare the first plan of one size with a plan. If none of that size fits, the first is the smallest."""
    difference = cost(plans, rank, own_rank)
    values: dict[str, Any] = {"axis": name, "size": size, "smaller": is_smaller}
    if difference.over_gib:
        return Sentence(code="too_large", values={**values, "over_gib": difference.over_gib})
    if difference.over_host_gib:
        return Sentence(code="host_too_large", values={**values, "over_gib": difference.over_host_gib})
    return Sentence(code="slower", values={**values, "slower": difference.slower, "part": difference.part})
