"""The rules on many plans at once: each is asked once for every combination of the values that it reads.

A rule is a function of one job. Here it is given a stand-in that answers with one plan's values and notes which axes
were read; plans that agree in these share the answer. Nothing is declared, so nothing can be declared wrongly.
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
EVERY = slice(None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A choice that plans differ in."""

    paths: tuple[str, ...]
    """Where it stands in the job; several that are chosen together."""
    values: tuple[tuple[Any, ...], ...]
    """Every value: one item a path."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """Plans of one engine as numbers: plan i has the value codes[axis][i] of each axis."""

    job: Job
    """What the plans have in common."""
    axes: tuple[Axis, ...]
    codes: tuple[Codes, ...]

    @property
    def size(self) -> int:
        """How many plans there are."""
        return len(self.codes[0])

    @cached_property
    def place(self) -> Mapping[str, tuple[int, int]]:
        """Path -> (axis, item of its values)."""
        return {path: (number, item) for number, axis in enumerate(self.axes) for item, path in enumerate(axis.paths)}

    def value(self, path: str, row: int) -> Any:
        """A plan's value at a path."""
        axis, item = self.place[path]
        return self.axes[axis].values[self.codes[axis][row]][item]

    def values(self, row: int) -> dict[str, Any]:
        """A plan's values by path."""
        return {path: self.value(path, row) for path in self.place}

    def column(self, path: str, rows: npt.NDArray[Any] | slice = EVERY) -> npt.NDArray[Any]:
        """Every plan's value at a path, or that of some."""
        axis, item = self.place[path]
        return np.array([value[item] for value in self.axes[axis].values]).take(self.codes[axis][rows])

    def rows_with(self, values: Mapping[str, Any]) -> npt.NDArray[Any]:
        """The plans that have these values; of a path that is no axis, every value."""
        chosen = np.ones(self.size, bool)
        for number, axis in enumerate(self.axes):
            asked = [(item, values[path]) for item, path in enumerate(axis.paths) if path in values]
            codes = [code for code, value in enumerate(axis.values) if all(value[item] == one for item, one in asked)]
            if len(codes) < len(axis.values):
                chosen &= self.codes[number] == codes[0] if len(codes) == 1 else np.isin(self.codes[number], codes)
        return np.flatnonzero(chosen)

    def keys(self, axes: Sequence[int]) -> tuple[Codes, int]:
        """A number for each plan, equal where the plans agree in these axes, and how many numbers there can be."""
        keys, count = np.zeros(self.size, np.int32), 1
        for axis in axes:
            count *= len(self.axes[axis].values)
            keys = keys * len(self.axes[axis].values) + self.codes[axis]
        return keys, count

    def take(self, rows: npt.NDArray[Any]) -> "Space":
        """Only these plans."""
        return Space(job=self.job, axes=self.axes, codes=tuple(codes[rows] for codes in self.codes))

    def times(self, other: "Space") -> "Space":
        """Every plan of this space with every choice of another."""
        codes = (
            *(np.repeat(codes, other.size) for codes in self.codes),
            *(np.tile(codes, self.size) for codes in other.codes),
        )
        return Space(job=self.job, axes=(*self.axes, *other.axes), codes=codes)


Factors = Sequence[Space]
"""Plans as a product, every combination of one row of each: what no rule reads together need not be multiplied out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Legal:
    """What the rules leave of a space."""

    space: Space
    """The plans that no rule refuses."""
    rejected: Mapping[str, int]
    """How many others there were, by the code of the first refusal."""
    reads: Mapping[tuple[str, str], Any]
    """(part of the job or empty, key) -> value: what the plans have in common that the rules read."""

    def holds_for(self, job: Job) -> bool:
        """Whether the rules would say the same of another job with the same plans."""
        return all(
            getattr(getattr(job, part) if part else job, name) == value for (part, name), value in self.reads.items()
        )


def legal(factors: Factors, shape: ModelShape, gpu: Gpu, rules: Sequence[BoundRule]) -> Legal:
    """The plans that no rule refuses.

    A warning also refuses a plan if its edit changes the plan's value on an axis (`refuses`). A rule that depends on no
    axis and no engine concerns the job, not its plans, and is left to `check`.
    """
    job, rejected = factors[0].job, Counter[str]()
    paths = {path for space in factors for path in space.place}
    reads: dict[tuple[str, str], Any] = {("", "engine"): job.engine}
    for name in DERIVED:
        factors = _with_derived(factors, name, reads)
    for rule in rules:
        if not rule.binds(job.traits) or not _size(factors):
            continue
        asked = _ask(partial(_verdict, rule, shape, gpu), factors, reads)
        factors, space = asked.factors, asked.space
        if not asked.is_about_plans:
            continue
        refused = np.zeros(max(asked.answers, default=0) + 1, bool)
        for key, problem in asked.answers.items():
            refused[key] = problem is not None and refuses(problem, paths)
        counts = np.bincount(asked.keys) * (_size(factors) // space.size)
        for key in np.flatnonzero(refused).tolist():
            rejected[cast(Problem, asked.answers[key]).code] += int(counts[key])
        if refused.any():
            factors = asked.with_space(space.take(~refused[asked.keys]))
    return Legal(space=reduce(Space.times, map(_without_derived, factors)), rejected=rejected, reads=reads)


def _size(factors: Factors) -> int:
    return prod(space.size for space in factors)


def _verdict(rule: BoundRule, shape: ModelShape, gpu: Gpu, job: Job) -> Problem | None:
    return rule.function(job, shape, gpu)


def refuses(problem: Problem, paths: Collection[str]) -> bool:
    """Whether a problem removes a plan from a set of plans that differ in these paths.

    A warning does so if its edit changes one of the paths. The edit then leads to another plan of the set; this plan is
    either the same plan under another name, or trains something wrongly.
    """
    return problem.severity == "error" or any(path in paths for path in problem.edit)


DERIVED = ("model_parallel", "data_parallel", "accumulation")
"""Properties of Job that rules read in place of the sizes they come from: few values of many sizes."""


def _with_derived(factors: Factors, name: str, reads: dict[tuple[str, str], Any]) -> Factors:
    """The factors with a property of Job as one more axis."""
    if not _size(factors):
        return factors
    asked = _ask(lambda job: getattr(job, name), factors, reads)
    values, codes = np.unique(list(asked.answers.values()), return_inverse=True)
    by_key = np.zeros(max(asked.answers) + 1, np.int32)
    by_key[list(asked.answers)] = codes
    axis = Axis(paths=(name,), values=tuple((value,) for value in values.tolist()))
    space = asked.space
    return asked.with_space(Space(job=space.job, axes=(*space.axes, axis), codes=(*space.codes, by_key[asked.keys])))


def _without_derived(space: Space) -> Space:
    kept = [number for number, axis in enumerate(space.axes) if axis.paths[0] not in DERIVED]
    axes, codes = tuple(space.axes[number] for number in kept), tuple(space.codes[number] for number in kept)
    return Space(job=space.job, axes=axes, codes=codes)


class _Asked(NamedTuple):
    """What a question was answered for all plans."""

    factors: Factors
    place: int
    """Which of the factors holds all axes that were read."""
    keys: Codes
    """For each row of that factor the key of its answer."""
    answers: Mapping[int, Any]
    is_about_plans: bool
    """An axis or the engine was read."""

    @property
    def space(self) -> Space:
        """The factor that was read."""
        return self.factors[self.place]

    def with_space(self, space: Space) -> Factors:
        """The factors with another in place of the one that was read."""
        return [space if place == self.place else other for place, other in enumerate(self.factors)]


def _ask(question: Callable[[Job], Any], factors: Factors, reads: dict[tuple[str, str], Any]) -> _Asked:
    """The answers to a question about each plan; factors that it reads together are multiplied out."""
    read: set[tuple[int, int]] = set()
    while True:
        watch, place = _Watch(factors, reads), next((place for place, _ in read), 0)
        keys, count = factors[place].keys(sorted(axis for _, axis in read))
        rows = np.full(count, -1, np.int32)
        rows[keys] = np.arange(len(keys), dtype=np.int32)
        answers: dict[int, Any] = {}
        for key in np.flatnonzero(rows >= 0).tolist():
            watch.rows[place] = int(rows[key])
            answers[key] = question(cast(Job, watch))
            # It read what the keys do not tell apart: ask again with keys that do.
            if not watch.read <= read:
                break
        else:
            return _Asked(factors, place, keys, answers, bool(read) or watch.is_engine_read)
        read |= watch.read
        together = {place for place, _ in read}
        if len(together) > 1:
            one = reduce(Space.times, (factors[place] for place in sorted(together)))
            factors = [one, *(space for place, space in enumerate(factors) if place not in together)]
            read = set()


_PROPERTIES: Mapping[str, Callable[[Any], Any]] = {
    name: item.fget for name, item in vars(Job).items() if isinstance(item, property) and item.fget
}


class _Watch:
    """Stands in for the Job of one plan, and notes which axes are read."""

    def __init__(self, factors: Factors, reads: dict[tuple[str, str], Any]) -> None:
        self.job = factors[0].job
        self.factors = factors
        self.places = {
            path: (number, *place) for number, space in enumerate(factors) for path, place in space.place.items()
        }
        self.reads = reads
        self.rows = [0] * len(factors)
        self.read: set[tuple[int, int]] = set()
        """(factor, axis)"""
        self.is_engine_read = False
        self.cluster = _Part(self, "cluster")
        self.parallel = _Part(self, "parallel")
        self.training = _Part(self, "training")

    def __getattr__(self, name: str) -> Any:
        place = self.places.get(name)
        if place is not None:
            return self.value_at(place)
        if name in _PROPERTIES:
            return _PROPERTIES[name](self)
        value = getattr(self.job, name)
        if name in ("engine", "traits"):
            self.is_engine_read = True
        else:
            self.reads["", name] = value
        return value

    def value_at(self, place: tuple[int, int, int]) -> Any:
        """The value of an axis, which is now read."""
        number, axis, item = place
        self.read.add((number, axis))
        space = self.factors[number]
        return space.axes[axis].values[space.codes[axis][self.rows[number]]][item]


class _Part:
    """Stands in for a part of the job."""

    def __init__(self, watch: _Watch, name: str) -> None:
        self._watch = watch
        self._name = name
        self._part = getattr(watch.job, name)

    def __getattr__(self, name: str) -> Any:
        watch = self._watch
        place = watch.places.get(f"{self._name}.{name}")
        if place is None:
            value = watch.reads[self._name, name] = getattr(self._part, name)
            return value
        return watch.value_at(place)
