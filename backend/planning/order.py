"""The order of plans, worked out as far as somebody looks: to sort a large space takes as long as half an edit may."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
LEAST = 4096
"""Plans that are sorted at once: about as many as a page looks at."""


class Group:
    """Some of all plans: the least `key` first, of equal ones the least `tie`, then as they stand."""

    def __init__(self, places: Array, key: Array, tie: Array | None = None) -> None:
        """`places` of its plans among all, ascending; `key` and `tie` of all."""
        self.places = places
        self._of_all = key, tie
        self._key = key[places]
        self._tie = None if tie is None else tie[places]
        self._sorted: Array = np.zeros(0, np.intp)

    def __len__(self) -> int:
        return len(self.places)

    def among(self, places: Array) -> "Group":
        """Other plans in the order of these."""
        return Group(places, *self._of_all)

    def first(self, count: int) -> Array:
        """The places of the first so many."""
        known = self._sorted  # another thread may put less there meanwhile
        if len(known) < min(count, len(self)):
            known = self._sorted = self._least(max(count, LEAST, 4 * len(known)))
        return known[:count]

    def rank(self, place: int) -> int:
        """How many of its plans come before one of them."""
        near = np.flatnonzero(self._sorted == place)
        if len(near):
            return int(near[0])
        own = int(np.searchsorted(self.places, place))
        key, before = self._key[own], np.count_nonzero(self._key < self._key[own])
        equal = np.flatnonzero(self._key == key)
        if len(equal) > 1:
            is_before = equal < own
            if self._tie is not None:
                ties, tie = self._tie[equal], self._tie[own]
                is_before = (ties < tie) | (ties == tie) & is_before
            before += np.count_nonzero(is_before)
        return int(before)

    def _least(self, count: int) -> Array:
        """At least so many, in order."""
        chosen = np.arange(len(self))
        if 2 * count < len(self):
            chosen = np.flatnonzero(self._key <= np.partition(self._key, count - 1)[count - 1])
        return self.places[chosen[_sorted(self._key[chosen], None if self._tie is None else self._tie[chosen])]]


class Order:
    """Groups of plans, one after the other."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)
        self._sorted: Array = np.zeros(0, np.intp)
        self._places: dict[int, int] = {}
        """Of plans whose rank was asked for."""

    def __len__(self) -> int:
        return sum(map(len, self.groups))

    def first(self, count: int) -> Array:
        """The places of the first so many."""
        known = self._sorted  # as in Group
        if len(known) < min(count, len(self)):
            found, left = [], count
            for group in self.groups:
                found.append(group.first(max(0, left)))
                left -= len(group)
            known = self._sorted = np.concatenate(found)
        return known[:count]

    def places(self, ranks: Array) -> Array:
        """The places of some by their ranks; nothing is sorted for those whose rank was asked for."""
        near = self.first(LEAST)
        is_far = ranks >= len(near)
        far = ranks[is_far].tolist()
        if not all(rank in self._places for rank in far):
            return self.first(max(far) + 1)[ranks]
        found = np.empty(len(ranks), np.intp)
        found[~is_far], found[is_far] = near[ranks[~is_far]], [self._places[rank] for rank in far]
        return found

    def rank(self, place: int) -> int | None:
        """How many plans come before the one at a place; None where it is in no group."""
        before = 0
        for group in self.groups:
            at = int(np.searchsorted(group.places, place))
            if at < len(group) and group.places[at] == place:
                rank = before + group.rank(place)
                self._places[rank] = place
                return rank
            before += len(group)
        return None

    def best(self, places: Array) -> int | None:
        """The rank of the first of some, which are given by their places; None where all are in no group."""
        asked = np.zeros(int(places.max(initial=-1)) + 1, bool)
        asked[places] = True
        for group in self.groups:
            near = group.places[: np.searchsorted(group.places, len(asked))]
            some = near[np.flatnonzero(asked[near])]
            if len(some):
                return self.rank(int(group.among(some).first(1)[0]))
        return None


def _sorted(first: Array, second: Array | None) -> Array:
    """np.lexsort((second, first)), in half the time: few are equal in the first, and only these are told apart."""
    if second is None:
        return np.argsort(first, kind="stable")
    order = np.argsort(first)
    ordered = first[order]
    equal = ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    rows = order[tied]
    order[tied] = rows[np.lexsort((rows, second[rows], first[rows]))]
    return order
