"""The Pareto front of memory and speed: the plans that no other plan beats in both."""

import numpy as np
import numpy.typing as npt

from backend.estimate.array_ops import Array
from backend.planning.lazy_sort import LEAST, Group, Indices


def front_of(fitting: Group, others: Group, memory: Array, time: Array) -> Indices:
    """Return the indices of the plans on the Pareto front, best first.

    `fitting` is sorted by time, `others` by memory; each of `others` needs more memory than any of `fitting`. `memory`
    and `time` cover all plans.
    """
    front, group = [], fitting
    while len(group):
        nearest = group.first(LEAST)
        need = memory[nearest]
        front.append(nearest[need < _least_before(need)])
        # A plan that needs as much memory as a faster plan is not on the front.
        group = fitting.among(group.indices[np.flatnonzero(memory[group.indices] < need.min())])
    fastest = time[fitting.first(1)[0]] if len(fitting) else np.inf
    larger = others.among(others.indices[time[others.indices] < fastest])
    by_memory = larger.first(len(larger))
    by_memory = by_memory[time[by_memory] < _least_before(time[by_memory])]
    # Of plans with equal memory, the last one is the fastest.
    is_last = np.append(memory[by_memory[:-1]] != memory[by_memory[1:]], True)[: len(by_memory)]
    return np.concatenate([*front, by_memory[is_last]])


def _least_before(values: Array) -> npt.NDArray[np.float64]:
    """Return for each value the minimum of the values before it."""
    return np.minimum.accumulate(np.concatenate(([np.inf], values)))[:-1]
