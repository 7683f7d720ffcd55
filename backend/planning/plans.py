"""The legal plans of a job as arrays, best first, and a single plan."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import prod
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from backend.estimate import Estimate, estimate_resolved
from backend.estimate.batched import PARTS, Figures, Parts
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import check_resolved
from backend.job.rules.batched import Column, Space
from backend.planning.lazy_sort import LEAST, Group, Indices, Order
from backend.planning.pareto import front_of
from backend.planning.space import (
    ACCUMULATION,
    CHOSEN,
    CUT,
    MICRO_BATCH,
    SHARDED,
    SIZES,
    Choice,
    has_nothing_to_shard,
    recompute_of,
)

Ranks = Indices | slice


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One plan. Its estimate and warnings are computed on first use."""

    job: Job
    """The job with this plan."""
    shape: ModelShape
    gpu: Gpu
    edits: Mapping[str, object]
    """Job path -> value: the edits that select the plan. They keep the global batch."""
    is_pareto: bool
    """Whether no other plan needs less memory and is as fast."""

    @cached_property
    def estimate(self) -> Estimate:
        """Return the estimate of the plan."""
        return estimate_resolved(self.job, self.shape, self.gpu)

    @cached_property
    def warnings(self) -> tuple[Problem, ...]:
        """Return the warnings and notes of the rules."""
        return tuple(check_resolved(self.job, self.shape, self.gpu))


def needs_other_engine(problems: Iterable[Problem]) -> bool:
    """Return whether a rule warns that a plan's engine trains wrongly on the cluster, or does not shard there, or
    refuses the engine until a setting of the job changes."""
    return any(_speaks_against_the_engine(problem) for problem in problems)


def _speaks_against_the_engine(problem: Problem) -> bool:
    if problem.severity == "error":
        return problem.field == "engine"
    return problem.severity == "warning" and "engine" in problem.edit


@dataclass(frozen=True, kw_only=True)
class Plans(Sequence[Candidate]):
    """The legal plans, best first, as arrays with one entry a plan. An item is a Candidate, created on access."""

    job: Job
    shape: ModelShape
    gpu: Gpu
    global_batch: int
    spaces: tuple[Space, ...]
    """The legal plans of each engine, unsorted. The index of a plan counts through all spaces."""
    unordered: Figures
    """Figures of the plan at each index."""
    order: Order
    """Order of the listed plans: those that surely fit, those that may fit, the others."""
    parts: tuple[Parts | None, ...]
    """For each of `spaces`, the parts of the iteration time, by row of the space. None if times are not known."""
    rejected: Mapping[str, int]
    """Number of plans refused, by the code of the first rule that refused them."""
    cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """Columns and the front, once computed."""

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, rank: int) -> Candidate: ...
    @overload
    def __getitem__(self, rank: slice) -> list[Candidate]: ...
    def __getitem__(self, rank: int | slice) -> Candidate | list[Candidate]:
        if isinstance(rank, slice):
            return [self[index] for index in range(*rank.indices(len(self)))]
        if not -len(self) <= rank < len(self):
            raise IndexError(rank)
        edits = self.edits(rank)
        return Candidate(
            job=with_values(self.job, edits),
            shape=self.shape,
            gpu=self.gpu,
            edits=edits,
            is_pareto=self.is_pareto(rank),
        )

    @property
    def fitting(self) -> int:
        """Return the number of plans whose computed need fits. They are the first ones."""
        sure, tight, _ = self.order.groups
        return len(sure) + len(tight)

    @property
    def surely_fitting(self) -> int:
        """Return the number of plans that fit by the upper bound of their need. They are the first ones."""
        return len(self.order.groups[0])

    def indices(self, ranks: Ranks) -> Indices:
        """Return the indices of plans among those of all engines."""
        if isinstance(ranks, slice):
            first, last, step = ranks.indices(len(self))
            return self.order.first(last)[first::step]
        return self.order.indices(ranks % max(1, len(self)))

    def at(self, ranks: Ranks) -> tuple[Indices, Indices]:
        """Return the space of each plan, as an index of `spaces`, and its row there."""
        indices = self.indices(ranks)
        starts = np.cumsum([0, *(space.size for space in self.spaces)])
        engine = np.searchsorted(starts, indices, side="right") - 1
        return engine, indices - starts[engine]

    def figures_of(self, ranks: Ranks) -> Figures:
        """Return the figures of plans."""
        indices = self.indices(ranks)
        values = {field.name: getattr(self.unordered, field.name) for field in fields(Figures)}
        return Figures(**{name: None if value is None else value[indices] for name, value in values.items()})  # type: ignore[arg-type]

    @property
    def engine(self) -> Indices:
        """Return the space of every plan, as an index of `spaces`."""
        engine: Indices = self._once("engine", lambda: self.at(slice(None))[0])
        return engine

    def edits(self, rank: int) -> dict[str, Any]:
        """Return the edits that select a plan, job path -> value. They keep the global batch."""
        engines, rows = self.at(np.array([rank]))
        space, row = self.spaces[engines[0]], int(rows[0])
        unsplit: dict[str, Any] = dict.fromkeys((f"parallel.{name}" for name in SIZES), 1)
        edits = {"engine": space.job.engine, **unsplit, **space.values(row)}
        if self.job.training.global_batch_size is None:
            model_parallel = prod(edits[f"parallel.{name}"] for name in ("tensor", "pipeline", "context"))
            replicas = space.job.world_size // model_parallel
            edits[ACCUMULATION] = self.global_batch // (edits[MICRO_BATCH] * replicas)
        return edits

    @property
    def step_tokens(self) -> int:
        """Return the tokens of an optimizer step, without padding."""
        return round(self.global_batch * self.job.sequences_per_sample * self.job.sequence_tokens)

    def recompute(self, ranks: Ranks) -> list[Choice]:
        """Return the recompute of plans: its kind, its modules, and the layers of a unit."""
        choices = []
        for engine, row in zip(*(column.tolist() for column in self.at(ranks)), strict=True):
            space = self.spaces[engine]
            axis, _ = space.axis_of["parallel.recompute"]
            choices.append(space.axes[axis].values[space.codes[axis][row]])
        return choices

    def parts_s(self, ranks: Ranks) -> npt.NDArray[np.float64] | None:
        """Return the parts of the iteration time of plans, a line for each of PARTS; None if times are not known."""
        engine, row = self.at(ranks)
        seconds = np.empty((len(PARTS), len(row)))
        for number, parts in enumerate(self.parts):
            if parts is None:
                return None
            members = np.flatnonzero(engine == number)
            seconds[:, members] = parts.at(row[members])
        return seconds

    def rank_of(self, job: Job) -> int | None:
        """Return the rank of a job's plan; None if the plan is not legal."""
        parallel = job.parallel
        engines = [space.job.engine for space in self.spaces]
        if job.engine not in engines:
            return None
        effect: dict[str, Any] = {MICRO_BATCH: job.training.micro_batch_size}
        if job.traits.is_megatron:
            effect |= {f"parallel.{name}": getattr(parallel, name) for name in (*SIZES, *CUT)}
            # A choice without effect has one value in all plans.
            sizes = (parallel.tensor, parallel.pipeline, parallel.expert, parallel.expert_tensor)
            alone = has_nothing_to_shard(job.world_size, self.shape.experts, *sizes)
            effect[SHARDED] = parallel.distributed_optimizer or alone
            effect["parallel.sequence"] = parallel.sequence or parallel.tensor == 1 or parallel.expert > 1
        engine, recompute = engines.index(job.engine), recompute_of(job)
        rows = self.spaces[engine].rows_with({**effect, **dict(zip(CHOSEN, recompute, strict=True))})
        start = sum(space.size for space in self.spaces[:engine])
        ranks = [self.order.rank(start + row) for row in rows.tolist()]
        return min((rank for rank in ranks if rank is not None), default=None)

    def column(self, path: str, default: object = 1) -> Column:
        """Return the value of every plan at a path; `default` if the engine has no such choice."""
        key = (path, type(default), default)
        column: Column = self._once(key, lambda: self.values(path, slice(None), default))
        return column

    def values(self, path: str, ranks: Ranks, default: object = 1) -> Column:
        """Return the values of plans as `column` does."""
        engine, row = self.at(ranks)
        members = [np.flatnonzero(engine == number) for number in range(len(self.spaces))]
        columns = [
            space.column(path, row[rows_of_space]) if path in space.axis_of else np.full(len(rows_of_space), default)
            for space, rows_of_space in zip(self.spaces, members, strict=True)
        ]
        values = np.empty(len(engine), np.result_type(*columns) if columns else float)
        for rows_of_space, column in zip(members, columns, strict=True):
            values[rows_of_space] = column
        return values

    def splits_of(self, ranks: Ranks) -> npt.NDArray[np.int64]:
        """Return a number for each plan, equal for plans that split the model in the same way on the same engine."""
        engine, row = self.at(ranks)
        splits, first = np.zeros(len(engine), np.int64), 0
        paths = [f"parallel.{name}" for name in SIZES]
        for number, space in enumerate(self.spaces):
            members = np.flatnonzero(engine == number)
            axes = sorted({space.axis_of[path][0] for path in paths if path in space.axis_of})
            keys, count = space.take(row[members]).keys(axes)
            splits[members] = first + keys.astype(np.int64)
            first += count
        return splits

    def is_pareto(self, rank: int) -> bool:
        """Return whether a plan is on the Pareto front of GPU memory and speed. A node's RAM must hold it."""
        return bool(np.isin(self.indices(np.array([rank])), self.front)[0])

    @property
    def front(self) -> Indices:
        """Return the indices of the plans on the Pareto front, best first."""
        front: Indices = self._once("front", self._front)
        return front

    def _front(self) -> Indices:
        figures = self.unordered
        time, host = figures.iteration_s, figures.host_memory_gib
        if time is None:
            return np.zeros(0, np.intp)
        sure, tight, others = self.order.groups
        # A stable sort merges two sorted arrays, three times as fast as np.union1d.
        indices = np.sort(np.concatenate((sure.indices, tight.indices)), kind="stable")
        fitting = Group(indices, time, figures.need_gib)
        memory_gib = self.job.cluster.host_memory_gib
        if host is not None and memory_gib is not None:
            is_held = host[others.indices] <= memory_gib
            others = others.among(others.indices[is_held])
        return front_of(fitting, others, figures.need_gib, time)

    def first_of(self, engine: int, path: str | None = None, value: object = None) -> int | None:
        """Return the rank of the first plan of one of `spaces`, or of the first with this value. None without one."""
        space, code = self.spaces[engine], None
        if path is not None:
            axis, item = space.axis_of[path]
            code = next((code for code, values in enumerate(space.axes[axis].values) if values[item] == value), None)
            if code is None:
                return None
        engines, rows = self.at(slice(LEAST))
        is_match = engines == engine
        if code is not None:
            is_match[is_match] = space.codes[axis][rows[is_match]] == code
        if is_match.any():
            return int(is_match.argmax())
        start = sum(earlier.size for earlier in self.spaces[:engine])
        own_rows = np.arange(space.size) if code is None else np.flatnonzero(space.codes[axis] == code)
        return self.order.best(start + own_rows)

    def _once(self, key: Any, compute: Callable[[], Any]) -> Any:
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]
