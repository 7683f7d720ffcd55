"""Lazy sorting of plans: only the first ones are sorted. Sorting a large space takes half the time of an edit.

enumerate.py (`_ranked`) chooses the keys: plans that fit come first, and the fastest of them is the first.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from backend.estimate.array_ops import Array

Indices = npt.NDArray[np.intp]
"""Indices of plans among all plans, unsorted."""
Mask = npt.NDArray[np.bool_]
"""A truth value for each plan."""
LEAST = 4096
"""Plans that are sorted at once: about as many as a page needs."""


class Group:
    """Some of all plans, sorted by `key`, then by `tie`, then by index."""

    def __init__(self, indices: Indices, key: Array, tie: Array | None = None) -> None:
        """Take the ascending indices of the group's plans, and `key` and `tie` of all plans."""
        self.indices = indices
        self._of_all = key, tie
        self._key = key[indices]
        self._tie = None if tie is None else tie[indices]
        self._sorted: Indices = np.zeros(0, np.intp)

    def __len__(self) -> int:
        return len(self.indices)

    def among(self, indices: Indices) -> "Group":
        """Return other plans, sorted in the same way."""
        return Group(indices, *self._of_all)

    def first(self, count: int) -> Indices:
        """Return the indices of the first `count` plans."""
        sorted_indices = self._sorted  # another thread may put a shorter array there meanwhile
        if len(sorted_indices) < min(count, len(self)):
            sorted_indices = self._sorted = self._least(max(count, LEAST, 4 * len(sorted_indices)))
        return sorted_indices[:count]

    def rank(self, index: int) -> int:
        """Return how many plans of the group are before the plan at an index."""
        position = np.flatnonzero(self._sorted == index)
        if len(position):
            return int(position[0])
        return self.before(index)

    def before(self, index: int) -> int:
        """Return how many plans of the group are before the plan at an index, which may be in another group."""
        of_all, ties_of_all = self._of_all
        key = of_all[index]
        before = np.count_nonzero(self._key < key)
        equal = np.flatnonzero(self._key == key)
        if len(equal):
            is_before = self.indices[equal] < index
            if self._tie is not None and ties_of_all is not None:
                ties, tie = self._tie[equal], ties_of_all[index]
                is_before = (ties < tie) | (ties == tie) & is_before
            before += np.count_nonzero(is_before)
        return int(before)

    def _least(self, count: int) -> Indices:
        """Return the indices of at least the first `count` plans."""
        chosen = np.arange(len(self))
        if 2 * count < len(self):
            chosen = np.flatnonzero(self._key <= np.partition(self._key, count - 1)[count - 1])
        return self.indices[chosen[_argsort(self._key[chosen], None if self._tie is None else self._tie[chosen])]]


class Order:
    """Groups of plans, one after the other."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)
        self._sorted: Indices = np.zeros(0, np.intp)
        self._by_rank: dict[int, int] = {}
        """Rank -> index of the plans whose rank was computed."""

    def __len__(self) -> int:
        return sum(map(len, self.groups))

    def first(self, count: int) -> Indices:
        """Return the indices of the first `count` plans."""
        sorted_indices = self._sorted  # as in Group
        if len(sorted_indices) < min(count, len(self)):
            parts, remaining = [], count
            for group in self.groups:
                parts.append(group.first(max(0, remaining)))
                remaining -= len(group)
            sorted_indices = self._sorted = np.concatenate(parts)
        return sorted_indices[:count]

    def indices(self, ranks: Indices) -> Indices:
        """Return the indices of plans by rank. Nothing is sorted if their ranks were computed before."""
        first = self.first(LEAST)
        is_later = ranks >= len(first)
        later = ranks[is_later].tolist()
        if not all(rank in self._by_rank for rank in later):
            return self.first(max(later) + 1)[ranks]
        indices = np.empty(len(ranks), np.intp)
        indices[~is_later], indices[is_later] = first[ranks[~is_later]], [self._by_rank[rank] for rank in later]
        return indices

    def rank(self, index: int) -> int | None:
        """Return how many plans are before the plan at an index; None if it is in no group."""
        before = 0
        for group in self.groups:
            row = int(np.searchsorted(group.indices, index))
            if row < len(group) and group.indices[row] == index:
                rank = before + group.rank(index)
                self._by_rank[rank] = index
                return rank
            before += len(group)
        return None

    def best(self, indices: Indices) -> int | None:
        """Return the rank of the first of the plans at these indices; None if none is in a group."""
        is_among = np.zeros(int(indices.max(initial=-1)) + 1, bool)
        is_among[indices] = True
        for group in self.groups:
            candidates = group.indices[: np.searchsorted(group.indices, len(is_among))]
            members = candidates[np.flatnonzero(is_among[candidates])]
            if len(members):
                return self.rank(int(group.among(members).first(1)[0]))
        return None


def _argsort(first: Array, second: Array | None) -> Indices:
    """Return np.lexsort((second, first)) in half the time: few values of `first` are equal, and only these need it."""
    if second is None:
        return np.argsort(first, kind="stable")
    order = np.argsort(first)
    ordered = first[order]
    equal = ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    rows = order[tied]
    order[tied] = rows[np.lexsort((rows, second[rows], first[rows]))]
    return order
