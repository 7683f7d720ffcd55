"""The rules on many plans at once: each is asked once for every combination of the values that it reads.

A rule is a function of one job. Here it is given a stand-in that answers with one plan's values and notes which axes
were read; plans that agree in these share the answer. Nothing is declared, so nothing can be declared wrongly.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules.bound import BoundRule

Codes = npt.NDArray[np.int32]


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

    def column(self, path: str, rows: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Every plan's value at a path, or that of some."""
        axis, item = self.place[path]
        codes = self.codes[axis] if rows is None else self.codes[axis][rows]
        return np.array([value[item] for value in self.axes[axis].values])[codes]

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


def legal(space: Space, shape: ModelShape, gpu: Gpu, rules: Sequence[BoundRule]) -> Legal:
    """The plans that no rule refuses.

    A warning that would move a plan to another value of an axis refuses it too: that value is among the plans, and
    this one would be the same under another name. A rule that no axis and no engine changes says something about the
    job, not about its plans, and is left to `check`.
    """
    rejected: Counter[str] = Counter()
    reads: dict[tuple[str, str], Any] = {("", "engine"): space.job.engine}
    axes = len(space.axes)
    for name in DERIVED:
        space = _with_derived(space, name, reads)
    for rule in rules:
        if not rule.binds(space.job.traits) or not space.size:
            continue
        keys, answers, about_plan = _answers(partial(_ask, rule, shape, gpu), space, reads)
        if not about_plan:
            continue
        refused = np.zeros(max(answers, default=0) + 1, bool)
        for key, problem in answers.items():
            refused[key] = problem is not None and _refuses(problem, space)
        counts = np.bincount(keys)
        for key in np.flatnonzero(refused).tolist():
            rejected[cast(Problem, answers[key]).code] += int(counts[key])
        if refused.any():
            space = space.take(~refused[keys])
    bare = Space(job=space.job, axes=space.axes[:axes], codes=space.codes[:axes])
    return Legal(space=bare, rejected=rejected, reads=reads)


DERIVED = ("model_parallel", "data_parallel", "accumulation")
"""Properties of Job that rules read in place of the sizes they come from: few values of many sizes."""


def _with_derived(space: Space, name: str, reads: dict[tuple[str, str], Any]) -> Space:
    """The space with a property of Job as one more axis."""
    if not space.size:
        return space
    keys, answers, _ = _answers(lambda job: getattr(job, name), space, reads)
    values, codes = np.unique(list(answers.values()), return_inverse=True)
    by_key = np.zeros(max(answers) + 1, np.int32)
    by_key[list(answers)] = codes
    axis = Axis(paths=(name,), values=tuple((value,) for value in values.tolist()))
    return Space(job=space.job, axes=(*space.axes, axis), codes=(*space.codes, by_key[keys]))


def _ask(rule: BoundRule, shape: ModelShape, gpu: Gpu, job: Job) -> Problem | None:
    return rule.function(job, shape, gpu)


def _refuses(problem: Problem, space: Space) -> bool:
    return problem.severity == "error" or any(path in space.place for path in problem.edit)


def _answers(
    question: Callable[[Job], Any], space: Space, reads: dict[tuple[str, str], Any]
) -> tuple[Codes, Mapping[int, Any], bool]:
    """Each plan's key, the answer by key, and whether an axis or the engine was read at all."""
    read: set[int] = set()
    while True:
        watch = _Watch(space, reads)
        keys, count = space.keys(sorted(read))
        rows = np.full(count, -1, np.int32)
        rows[keys] = np.arange(space.size, dtype=np.int32)
        answers: dict[int, Any] = {}
        for key in np.flatnonzero(rows >= 0).tolist():
            watch.row = int(rows[key])
            answers[key] = question(cast(Job, watch))
            # It read what the keys do not tell apart: ask again with keys that do.
            if not watch.axes <= read:
                break
        else:
            return keys, answers, bool(read) or watch.is_engine_read
        read |= watch.axes


_PROPERTIES: Mapping[str, Callable[[Any], Any]] = {
    name: item.fget for name, item in vars(Job).items() if isinstance(item, property) and item.fget
}


class _Watch:
    """Stands in for the Job of one plan, and notes which axes are read."""

    def __init__(self, space: Space, reads: dict[tuple[str, str], Any]) -> None:
        self.space = space
        self.reads = reads
        self.row = 0
        self.axes: set[int] = set()
        self.is_engine_read = False
        self.cluster = _Part(self, "cluster")
        self.parallel = _Part(self, "parallel")
        self.training = _Part(self, "training")

    def __getattr__(self, name: str) -> Any:
        place = self.space.place.get(name)
        if place is not None:
            return self.value_at(place)
        if name in _PROPERTIES:
            return _PROPERTIES[name](self)
        value = getattr(self.space.job, name)
        if name in ("engine", "traits"):
            self.is_engine_read = True
        else:
            self.reads["", name] = value
        return value

    def value_at(self, place: tuple[int, int]) -> Any:
        """The value of an axis, which is now read."""
        axis, item = place
        self.axes.add(axis)
        return self.space.axes[axis].values[self.space.codes[axis][self.row]][item]


class _Part:
    """Stands in for a part of the job."""

    def __init__(self, watch: _Watch, name: str) -> None:
        self._watch = watch
        self._name = name
        self._part = getattr(watch.space.job, name)

    def __getattr__(self, name: str) -> Any:
        watch = self._watch
        place = watch.space.place.get(f"{self._name}.{name}")
        if place is None:
            value = watch.reads[self._name, name] = getattr(self._part, name)
            return value
        return watch.value_at(place)
