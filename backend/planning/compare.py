"""What a plan costs against another, and why the best one is the best: sentences as codes and figures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backend.estimate.batched import PARTS
from backend.planning.order import LEAST
from backend.planning.plans import Plans


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a plan costs against the best."""

    over_gib: float
    """Memory that it needs beyond the GPU's; 0 where that suffices."""
    over_host_gib: float
    """RAM that it needs beyond a node's; 0 where that suffices or is not known."""
    slower: float | None
    """Share of the best's speed that it loses; negative where it is faster. None where times are not known."""
    part: str | None
    """The part of the iteration that grew most, one of PARTS."""


def cost(plans: Plans, rank: int) -> Cost:
    """The cost of one plan against the first."""
    both = np.array([rank, 0])
    figures, times = plans.figures_of(both), plans.parts_s(both)
    over = float(figures.need_gib[0]) - plans.gpu.memory_gib
    host, memory_gib = figures.host_memory_gib, plans.job.cluster.host_memory_gib
    over_host = 0.0 if host is None or memory_gib is None else float(host[0]) - memory_gib
    memory = {"over_gib": max(0.0, over), "over_host_gib": max(0.0, over_host)}
    if figures.iteration_s is None or times is None:
        return Cost(**memory, slower=None, part=None)
    grown = times[:, 0] - times[:, 1]
    slower = 1 - float(figures.iteration_s[1] / figures.iteration_s[0])
    return Cost(**memory, slower=slower, part=PARTS[int(grown.argmax())])


def best_of_splits(plans: Plans, most: int) -> list[int]:
    """Of the plans that split the model in the same way on the same engine the best one each, as ranks, the best first.

    They differ in micro-batch, recompute, sequence parallel, distributed optimizer and what counts as a layer alone.
    """
    count, found = LEAST, np.zeros(0, np.intp)
    while len(found) < most and len(found) < len(plans):
        split = plans.splits_of(slice(count))
        found = np.sort(np.unique(split, return_index=True)[1])
        if len(split) == len(plans):
            break
        count *= 4
    return [int(rank) for rank in found[:most]]


def front(plans: Plans, most: int) -> list[int]:
    """Ranks of the plans that no other beats in both memory and speed, the best first."""
    ranks = (plans.order.rank(place) for place in plans.front[:most].tolist())
    return [rank for rank in ranks if rank is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """Words under `why.<code>`."""

    code: str
    values: Mapping[str, Any] = field(default_factory=dict)


def why_best(plans: Plans) -> list[Sentence]:
    """Why the first plan is the first: what its time goes to, and what other sizes would cost. Empty without times."""
    times = plans.parts_s(slice(1))
    if not len(plans) or times is None:
        return []
    spent = times[:, 0] / times[:, 0].sum()
    parts = [(PARTS[index], float(spent[index])) for index in np.argsort(-spent)[:3] if spent[index] > 0.005]
    return [Sentence(code="spends", values={"parts": parts}), *_neighbours(plans)]


NOTICED = 0.005
"""Speed that two plans must differ by to be told apart."""


def _neighbours(plans: Plans) -> Iterator[Sentence]:
    """For TP, PP and the micro-batch: the best plan with the next smaller and the next larger one."""
    engine, row = (int(place[0]) for place in plans.at(slice(1)))
    space = plans.spaces[engine]
    for name, path in (("TP", "parallel.tensor"), ("PP", "parallel.pipeline"), ("mbs", "training.micro_batch_size")):
        if path not in space.place:
            continue
        axis, item = space.place[path]
        own, sizes = space.value(path, row), sorted(values[item] for values in space.axes[axis].values)
        for others in ([size for size in reversed(sizes) if size < own], [size for size in sizes if size > own]):
            # Not every size is legal.
            ranks = ((size, plans.first_of(engine, path, size)) for size in others)
            size, rank = next((one for one in ranks if one[1] is not None), (own, None))
            if rank is None:
                continue
            found = _neighbour(plans, name, size, rank, is_smaller=size < own)
            if "over_gib" in found.values or found.values["slower"] > NOTICED:
                yield found


def _neighbour(plans: Plans, name: str, size: int, rank: int, *, is_smaller: bool) -> Sentence:
    """A plan against the best one: the first of that size, which is the smallest where none of them fits."""
    found = cost(plans, rank)
    values: dict[str, Any] = {"axis": name, "size": size, "smaller": is_smaller}
    if found.over_gib:
        return Sentence(code="too_large", values={**values, "over_gib": found.over_gib})
    if found.over_host_gib:
        return Sentence(code="host_too_large", values={**values, "over_gib": found.over_host_gib})
    return Sentence(code="slower", values={**values, "slower": found.slower, "part": found.part})
