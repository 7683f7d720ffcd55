"""Lazy sorting gives the same order as sorting all plans."""

import numpy as np
import pytest

from backend.planning.lazy_sort import LEAST, Group, Order
from backend.planning.pareto import front_of

SIZE = 3 * LEAST + 1


@pytest.fixture(params=[0, 500])
def plans(request):
    """Return time, memory and whether it fits for plans, many of them equal in one or both. A plan that fits may be
    slower."""
    random = np.random.default_rng(0)
    memory = random.integers(1, 60, SIZE) / 3
    fits = memory < 14
    return random.integers(1, 9000, SIZE) / 7 + request.param * fits, memory, fits


def order_of(time, memory, fits):
    return Order((Group(np.flatnonzero(fits), time, memory), Group(np.flatnonzero(~fits), memory)))


def sorted_whole(time, memory, fits):
    """Return plans that fit by time, then by memory; the others by memory; equal ones by index."""
    return np.lexsort((np.arange(SIZE), np.where(fits, memory, 0), np.where(fits, time, memory), ~fits))


@pytest.mark.parametrize("count", [1, LEAST, LEAST + 1, SIZE, SIZE + 1])
def test_the_first_are_those_of_all_sorted(plans, count):
    assert order_of(*plans).first(count).tolist() == sorted_whole(*plans)[:count].tolist()


def test_ranks_places_and_the_best_of_some_are_those_of_all_sorted(plans):
    order, whole = order_of(*plans), sorted_whole(*plans)
    for rank in (0, LEAST - 1, LEAST, 2 * LEAST, SIZE - 1):
        position = int(whole[rank])
        assert order.rank(position) == rank
        assert order.indices(np.array([rank, 5])).tolist() == [position, whole[5]]
        assert order.best(np.sort(whole[rank:])) == rank
    assert order.indices(np.array([SIZE - 2])).tolist() == [whole[-2]]
    assert order.rank(SIZE) is None


def test_the_front_is_that_of_all_sorted(plans):
    time, memory, _ = plans
    order = order_of(*plans)
    front = front_of(*order.groups, memory, time)
    whole = sorted_whole(*plans)
    best = [
        position for position in whole.tolist() if not ((memory <= memory[position]) & (time <= time[position])
        & ((memory < memory[position]) | (time < time[position]))).any()
    ]  # fmt: skip
    first = {(time[position], memory[position]): position for position in reversed(best)}
    assert front.tolist() == [position for position in best if first[time[position], memory[position]] == position]


def test_who_asks_for_more_gets_it_though_another_thread_keeps_less_meanwhile():
    class RacedGroup(Group):
        _sorted = property(lambda self: np.zeros(0, np.intp), lambda self, found: None)

    class RacedOrder(Order):
        _sorted = property(lambda self: np.zeros(0, np.intp), lambda self, found: None)

    group = RacedGroup(np.arange(SIZE), -np.arange(SIZE))
    assert list(group.first(3)) == [SIZE - 1, SIZE - 2, SIZE - 3]
    assert list(RacedOrder([Group(np.arange(SIZE), -np.arange(SIZE))]).first(2)) == [SIZE - 1, SIZE - 2]
