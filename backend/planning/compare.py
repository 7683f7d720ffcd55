"""What a plan costs against another, and why the best one is the best: sentences as codes and figures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backend.estimate.many import PARTS
from backend.planning.plans import Array, Plans


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


def cost(plans: Plans, rank: int, best: int = 0) -> Cost:
    """The cost of one plan against another."""
    figures = plans.figures
    over = float(figures.reserved_gib[rank]) + plans.job.cluster.outside_gib - plans.gpu.memory_gib
    host, memory_gib = figures.host_memory_gib, plans.job.cluster.host_memory_gib
    over_host = 0.0 if host is None or memory_gib is None else float(host[rank]) - memory_gib
    memory = {"over_gib": max(0.0, over), "over_host_gib": max(0.0, over_host)}
    times = plans.parts_s(np.array([rank, best]))
    if figures.iteration_s is None or times is None:
        return Cost(**memory, slower=None, part=None)
    grown = times[:, 0] - times[:, 1]
    slower = 1 - float(figures.iteration_s[best] / figures.iteration_s[rank])
    return Cost(**memory, slower=slower, part=PARTS[int(grown.argmax())])


def best_of_splits(plans: Plans, most: int) -> list[int]:
    """Of the plans that split the model in the same way on the same engine the best one each, as ranks, the best first.

    They differ in micro-batch, recompute, sequence parallel, distributed optimizer and what counts as a layer alone.
    """
    split = plans.split
    first = np.full(int(split.max(initial=-1)) + 1, -1)
    # What is written last stays: the best.
    first[split[::-1]] = np.arange(len(plans))[::-1]
    return [int(rank) for rank in np.sort(first[first >= 0])[:most]]


def front(plans: Plans, most: int) -> list[int]:
    """Ranks of the plans that no other beats in both memory and speed, the best first."""
    return [int(rank) for rank in np.flatnonzero(plans.pareto)[:most]]


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
    same_engine = plans.part == plans.part[0]
    for name, path in (("TP", "parallel.tensor"), ("PP", "parallel.pipeline"), ("mbs", "training.micro_batch_size")):
        values = plans.column(path)
        own = values[0]
        for is_smaller in (True, False):
            others = values[same_engine & ((values < own) if is_smaller else (values > own))]
            if len(others):
                size = int(others.max() if is_smaller else others.min())
                found = _neighbour(plans, name, size, same_engine & (values == size), is_smaller=is_smaller)
                if "over_gib" in found.values or found.values["slower"] > NOTICED:
                    yield found


def _neighbour(plans: Plans, name: str, size: int, chosen: Array, *, is_smaller: bool) -> Sentence:
    """The first of the chosen plans against the best one; where none fits, that is the smallest."""
    found = cost(plans, int(np.argmax(chosen)))
    values: dict[str, Any] = {"axis": name, "size": size, "smaller": is_smaller}
    if found.over_gib:
        return Sentence(code="too_large", values={**values, "over_gib": found.over_gib})
    if found.over_host_gib:
        return Sentence(code="host_too_large", values={**values, "over_gib": found.over_host_gib})
    return Sentence(code="slower", values={**values, "slower": found.slower, "part": found.part})
