"""The front of memory against speed: plans that no other beats in both."""

import numpy as np

from backend.planning.order import LEAST, Array, Group


def front_of(fitting: Group, others: Group, memory: Array, time: Array) -> Array:
    """The places of plans of which no other needs less memory and is as fast, the best first.

    `fitting` come by time; `others` by memory, of which they need more. `memory` and `time` are of all plans.
    """
    found, group = [], fitting
    while len(group):
        chosen = group.first(LEAST)
        need = memory[chosen]
        found.append(chosen[need < _least_before(need)])
        # What needs no less than one that is faster is not looked at again.
        group = fitting.among(group.places[np.flatnonzero(memory[group.places] < need.min())])
    fastest = time[fitting.first(1)[0]] if len(fitting) else np.inf
    larger = others.among(others.places[time[others.places] < fastest])
    chosen = larger.first(len(larger))
    chosen = chosen[time[chosen] < _least_before(time[chosen])]
    # Of some that need just as much the last is the fastest.
    is_last = np.append(memory[chosen[:-1]] != memory[chosen[1:]], True)[: len(chosen)]
    return np.concatenate([*found, chosen[is_last]])


def _least_before(values: Array) -> Array:
    """For each value the least of those before it."""
    return np.minimum.accumulate(np.concatenate(([np.inf], values)))[:-1]
