"""Rules on many plans at once: each rule is called once for every combination of the values that it reads.

A rule is a function of one job. This module calls it with a proxy of the job, which returns one plan's values and
records the axes that were read. Plans that agree on these axes share the result. No rule declares what it reads.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules.bound import BoundRule

Codes = npt.NDArray[np.int32]
Rows = npt.NDArray[np.integer] | npt.NDArray[np.bool_]
Column = npt.NDArray[np.generic]
"""The value of one parameter in every plan: sizes, choices or truth values. `as_sizes` returns one of sizes."""
EVERY = slice(None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A choice in which plans differ."""

    paths: tuple[str, ...]
    """Job paths of the choice; several if they are chosen together."""
    values: tuple[tuple[Any, ...], ...]
    """All values of the choice. Each has one item a path."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """Plans of one engine as numbers: plan i has the value axes[axis].values[codes[axis][i]] on each axis."""

    job: Job
    """The values that all plans share."""
    axes: tuple[Axis, ...]
    codes: tuple[Codes, ...]

    @property
    def size(self) -> int:
        """Return the number of plans."""
        return len(self.codes[0])

    @cached_property
    def axis_of(self) -> Mapping[str, tuple[int, int]]:
        """Return path -> (axis, item of its values)."""
        return {path: (number, item) for number, axis in enumerate(self.axes) for item, path in enumerate(axis.paths)}

    def value(self, path: str, row: int) -> Any:
        """Return the value of a plan at a path."""
        axis, item = self.axis_of[path]
        return self.axes[axis].values[self.codes[axis][row]][item]

    def values(self, row: int) -> dict[str, Any]:
        """Return the values of a plan by path."""
        return {path: self.value(path, row) for path in self.axis_of}

    def column(self, path: str, rows: Rows | slice = EVERY) -> Column:
        """Return the value of every plan, or of some plans, at a path."""
        axis, item = self.axis_of[path]
        return np.array([value[item] for value in self.axes[axis].values]).take(self.codes[axis][rows])

    def rows_with(self, values: Mapping[str, Any]) -> npt.NDArray[np.intp]:
        """Return the rows of the plans that have these values. Values of a path without an axis are ignored."""
        chosen = np.ones(self.size, bool)
        for number, axis in enumerate(self.axes):
            items = [(item, values[path]) for item, path in enumerate(axis.paths) if path in values]
            codes = [code for code, own in enumerate(axis.values) if all(own[item] == value for item, value in items)]
            if len(codes) < len(axis.values):
                chosen &= self.codes[number] == codes[0] if len(codes) == 1 else np.isin(self.codes[number], codes)
        return np.flatnonzero(chosen)

    def keys(self, axes: Sequence[int]) -> tuple[Codes, int]:
        """Return a number for each plan, equal for plans that agree on these axes, and a limit of the numbers."""
        keys, count = np.zeros(self.size, np.int32), 1
        for axis in axes:
            count *= len(self.axes[axis].values)
            keys = keys * len(self.axes[axis].values) + self.codes[axis]
        return keys, count

    def take(self, rows: Rows) -> "Space":
        """Return only these plans."""
        return Space(job=self.job, axes=self.axes, codes=tuple(codes[rows] for codes in self.codes))

    def times(self, other: "Space") -> "Space":
        """Return every plan of this space with every choice of another."""
        codes = (
            *(np.repeat(codes, other.size) for codes in self.codes),
            *(np.tile(codes, self.size) for codes in other.codes),
        )
        return Space(job=self.job, axes=(*self.axes, *other.axes), codes=codes)


def as_sizes(column: Column) -> npt.NDArray[np.intp]:
    """Return a column as the sizes that it holds."""
    return column.astype(np.intp, copy=False)


Factors = Sequence[Space]
"""Plans as a product: every combination of one row of each space. Spaces that no rule reads together stay factors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Legal:
    """The legal plans of a space."""

    space: Space
    """The plans that no rule refuses."""
    rejected: Mapping[str, int]
    """Number of refused plans, by the code of the first rule that refused them."""
    reads: Mapping[tuple[str, str], Any]
    """(part of the job or empty, key) -> value: the shared values that the rules read."""

    def holds_for(self, job: Job) -> bool:
        """Return whether the result is also valid for another job with the same plans."""
        return all(
            getattr(getattr(job, part) if part else job, name) == value for (part, name), value in self.reads.items()
        )


def legal(factors: Factors, shape: ModelShape, gpu: Gpu, rules: Sequence[BoundRule]) -> Legal:
    """Return the plans that no rule refuses.

    A warning also refuses a plan if its edit changes the plan's value on an axis (`refuses`). A rule that depends on no
    axis and no engine concerns the job, not its plans, and is left to `check`.
    """
    job, rejected = factors[0].job, Counter[str]()
    paths = {path for space in factors for path in space.axis_of}
    reads: dict[tuple[str, str], Any] = {("", "engine"): job.engine}
    for name in DERIVED:
        factors = _with_derived(factors, name, reads)
    for rule in rules:
        if not rule.binds(job.traits) or not _size(factors):
            continue
        result = _evaluate(partial(_problem, rule, shape, gpu), factors, reads)
        factors, space = result.factors, result.space
        if not result.is_about_plans:
            continue
        refused = np.zeros(max(result.values, default=0) + 1, bool)
        for key, problem in result.values.items():
            refused[key] = problem is not None and refuses(problem, paths)
        counts = np.bincount(result.keys) * (_size(factors) // space.size)
        for key in np.flatnonzero(refused).tolist():
            rejected[cast(Problem, result.values[key]).code] += int(counts[key])
        if refused.any():
            factors = result.with_space(space.take(~refused[result.keys]))
    return Legal(space=reduce(Space.times, map(_without_derived, factors)), rejected=rejected, reads=reads)


def _size(factors: Factors) -> int:
    return prod(space.size for space in factors)


def _problem(rule: BoundRule, shape: ModelShape, gpu: Gpu, job: Job) -> Problem | None:
    return rule.function(job, shape, gpu)


def refuses(problem: Problem, paths: Collection[str]) -> bool:
    """Return whether a problem removes a plan from a set of plans that differ in these paths.

    A warning does so if its edit changes one of the paths. The edit then leads to another plan of the set. This plan is
    either the same plan under another name, or it trains something wrongly.
    """
    return problem.severity == "error" or any(path in paths for path in problem.edit)


DERIVED = ("model_parallel", "data_parallel", "accumulation")
"""Properties of Job that rules read instead of the sizes: they have few values, the sizes have many combinations."""


def _with_derived(factors: Factors, name: str, reads: dict[tuple[str, str], Any]) -> Factors:
    """Return the factors with a property of Job as one more axis."""
    if not _size(factors):
        return factors
    result = _evaluate(lambda job: getattr(job, name), factors, reads)
    values, codes = np.unique(list(result.values.values()), return_inverse=True)
    by_key = np.zeros(max(result.values) + 1, np.int32)
    by_key[list(result.values)] = codes
    axis = Axis(paths=(name,), values=tuple((value,) for value in values.tolist()))
    space = result.space
    return result.with_space(Space(job=space.job, axes=(*space.axes, axis), codes=(*space.codes, by_key[result.keys])))


def _without_derived(space: Space) -> Space:
    numbers = [number for number, axis in enumerate(space.axes) if axis.paths[0] not in DERIVED]
    axes, codes = tuple(space.axes[number] for number in numbers), tuple(space.codes[number] for number in numbers)
    return Space(job=space.job, axes=axes, codes=codes)


class _Result(NamedTuple):
    """The values of a function for all plans."""

    factors: Factors
    factor: int
    """Index in `factors` of the factor with all axes that were read."""
    keys: Codes
    """For each row of that factor, the key of its value."""
    values: Mapping[int, Any]
    is_about_plans: bool
    """Whether an axis or the engine was read."""

    @property
    def space(self) -> Space:
        """Return the factor that was read."""
        return self.factors[self.factor]

    def with_space(self, space: Space) -> Factors:
        """Return the factors with `space` instead of the one that was read."""
        return [space if index == self.factor else other for index, other in enumerate(self.factors)]


def _evaluate(function: Callable[[Job], Any], factors: Factors, reads: dict[tuple[str, str], Any]) -> _Result:
    """Call a function for all plans. Factors that it reads together are multiplied out."""
    read: set[tuple[int, int]] = set()
    while True:
        proxy, index = _JobProxy(factors, reads), next((index for index, _ in read), 0)
        keys, count = factors[index].keys(sorted(axis for _, axis in read))
        rows = np.full(count, -1, np.int32)
        rows[keys] = np.arange(len(keys), dtype=np.int32)
        values: dict[int, Any] = {}
        for key in np.flatnonzero(rows >= 0).tolist():
            proxy.rows[index] = int(rows[key])
            values[key] = function(cast(Job, proxy))
            # The function read an axis that the keys do not distinguish: start again with keys that do.
            if not proxy.read <= read:
                break
        else:
            return _Result(factors, index, keys, values, bool(read) or proxy.is_engine_read)
        read |= proxy.read
        read_factors = {index for index, _ in read}
        if len(read_factors) > 1:
            product = reduce(Space.times, (factors[index] for index in sorted(read_factors)))
            factors = [product, *(space for index, space in enumerate(factors) if index not in read_factors)]
            read = set()


_PROPERTIES: Mapping[str, Callable[[Any], Any]] = {
    name: item.fget for name, item in vars(Job).items() if isinstance(item, property) and item.fget
}


class _JobProxy:
    """Proxy of the Job of one plan, which records the axes that are read."""

    def __init__(self, factors: Factors, reads: dict[tuple[str, str], Any]) -> None:
        self.job = factors[0].job
        self.factors = factors
        self.axis_of = {
            path: (index, *axis) for index, space in enumerate(factors) for path, axis in space.axis_of.items()
        }
        self.reads = reads
        self.rows = [0] * len(factors)
        self.read: set[tuple[int, int]] = set()
        """(factor, axis)"""
        self.is_engine_read = False
        self.cluster = _PartProxy(self, "cluster")
        self.parallel = _PartProxy(self, "parallel")
        self.training = _PartProxy(self, "training")

    def __getattr__(self, name: str) -> Any:
        location = self.axis_of.get(name)
        if location is not None:
            return self.value_at(location)
        if name in _PROPERTIES:
            return _PROPERTIES[name](self)
        value = getattr(self.job, name)
        if name in ("engine", "traits"):
            self.is_engine_read = True
        else:
            self.reads["", name] = value
        return value

    def value_at(self, location: tuple[int, int, int]) -> Any:
        """Return the value of a (factor, axis, item), and record that the axis is read."""
        index, axis, item = location
        self.read.add((index, axis))
        space = self.factors[index]
        return space.axes[axis].values[space.codes[axis][self.rows[index]]][item]


class _PartProxy:
    """Proxy of a part of the job."""

    def __init__(self, job: _JobProxy, name: str) -> None:
        self._job = job
        self._name = name
        self._part = getattr(job.job, name)

    def __getattr__(self, name: str) -> Any:
        location = self._job.axis_of.get(f"{self._name}.{name}")
        if location is None:
            value = self._job.reads[self._name, name] = getattr(self._part, name)
            return value
        return self._job.value_at(location)
