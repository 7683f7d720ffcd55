"""The legal plans of a job as arrays, best first, and what a plan is when one is looked at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import prod
from typing import Any, overload

import numpy as np

from backend.estimate import Estimate, estimate_resolved
from backend.estimate.batched import PARTS, Figures, Parts
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import check_resolved
from backend.job.rules.batched import Space
from backend.planning.order import LEAST, Array, Order
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

Ranks = Array | slice


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One plan; what is not needed to rank it is computed when asked for."""

    job: Job
    """The job with this plan."""
    shape: ModelShape
    gpu: Gpu
    edits: Mapping[str, object]
    """Job path -> value: the edit that chooses it; keeps the global batch."""
    is_pareto: bool
    """No other plan needs less memory and is as fast."""

    @cached_property
    def estimate(self) -> Estimate:
        """Its cost."""
        return estimate_resolved(self.job, self.shape, self.gpu)

    @cached_property
    def warnings(self) -> tuple[Problem, ...]:
        """What the rules say about it, though it is legal."""
        return tuple(check_resolved(self.job, self.shape, self.gpu))


@dataclass(frozen=True, kw_only=True)
class Plans(Sequence[Candidate]):
    """The legal plans, best first, as arrays with one entry a plan; a Candidate is made when asked for."""

    job: Job
    shape: ModelShape
    gpu: Gpu
    global_batch: int
    spaces: tuple[Space, ...]
    """The legal plans of each engine, unordered; a plan's place is among those of all."""
    unordered: Figures
    """Of the plan at each place."""
    order: Order
    """Of those that are listed: the ones that fit, then the others."""
    parts: tuple[Parts | None, ...]
    """For each of `spaces` what the iteration's seconds are the sum of, by place there; None without times."""
    rejected: Mapping[str, int]
    """How many plans each rule refused, by the code of the first rule that refused each."""
    cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """What was computed of these plans already."""

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
        """How many fit: the first ones."""
        return len(self.order.groups[0])

    def places(self, ranks: Ranks) -> Array:
        """Where some plans are among those of all engines."""
        if isinstance(ranks, slice):
            first, last, step = ranks.indices(len(self))
            return self.order.first(last)[first::step]
        return self.order.places(ranks % max(1, len(self)))

    def at(self, ranks: Ranks) -> tuple[Array, Array]:
        """Which of `spaces` some plans are in, and their places there."""
        places = self.places(ranks)
        starts = np.cumsum([0, *(space.size for space in self.spaces)])
        engine = np.searchsorted(starts, places, side="right") - 1
        return engine, places - starts[engine]

    def figures_of(self, ranks: Ranks) -> Figures:
        """Those of some plans."""
        places = self.places(ranks)
        values = {one.name: getattr(self.unordered, one.name) for one in fields(Figures)}
        return Figures(**{name: None if value is None else value[places] for name, value in values.items()})  # type: ignore[arg-type]

    @property
    def engine(self) -> Array:
        """Which of `spaces` every plan is in."""
        found: Array = self._once("engine", lambda: self.at(slice(None))[0])
        return found

    def edits(self, rank: int) -> dict[str, Any]:
        """Job path -> value: the edit that chooses a plan; keeps the global batch."""
        space, row = self._of(rank)
        unsplit: dict[str, Any] = dict.fromkeys((f"parallel.{name}" for name in SIZES), 1)
        edits = {"engine": space.job.engine, **unsplit, **space.values(row)}
        if self.job.training.global_batch_size is None:
            together = prod(edits[f"parallel.{name}"] for name in ("tensor", "pipeline", "context"))
            copies = space.job.world_size // together
            edits[ACCUMULATION] = self.global_batch // (edits[MICRO_BATCH] * copies)
        return edits

    def _of(self, rank: int) -> tuple[Space, int]:
        engine, row = self.at(np.array([rank]))
        return self.spaces[engine[0]], int(row[0])

    @property
    def step_tokens(self) -> int:
        """Tokens of an optimizer step, padding not counted."""
        return round(self.global_batch * self.job.sequences_per_sample * self.job.sequence_tokens)

    def recompute(self, ranks: Ranks) -> list[Choice]:
        """Some plans' recompute, its modules, and the layers of a unit."""
        found = []
        for engine, row in zip(*(place.tolist() for place in self.at(ranks)), strict=True):
            space = self.spaces[engine]
            axis, _ = space.place["parallel.recompute"]
            found.append(space.axes[axis].values[space.codes[axis][row]])
        return found

    def parts_s(self, ranks: Ranks) -> Array | None:
        """What the iteration's seconds of some plans are the sum of: a line for each of PARTS; None without times."""
        engine, row = self.at(ranks)
        found = np.empty((len(PARTS), len(row)))
        for number, parts in enumerate(self.parts):
            if parts is None:
                return None
            own = np.flatnonzero(engine == number)
            found[:, own] = parts.at(row[own])
        return found

    def rank_of(self, job: Job) -> int | None:
        """The place of a job's plan among these; None where it is not legal."""
        parallel = job.parallel
        engines = [space.job.engine for space in self.spaces]
        if job.engine not in engines:
            return None
        effect: dict[str, Any] = {MICRO_BATCH: job.training.micro_batch_size}
        if job.traits.is_megatron:
            effect |= {f"parallel.{name}": getattr(parallel, name) for name in (*SIZES, *CUT)}
            # What has no effect has one value among the plans.
            sizes = (parallel.tensor, parallel.pipeline, parallel.expert, parallel.expert_tensor)
            alone = has_nothing_to_shard(job.world_size, self.shape.experts, *sizes)
            effect[SHARDED] = parallel.distributed_optimizer or alone
            effect["parallel.sequence"] = parallel.sequence or parallel.tensor == 1 or parallel.expert > 1
        engine, wanted = engines.index(job.engine), recompute_of(job)
        rows = self.spaces[engine].rows_with({**effect, **dict(zip(CHOSEN, wanted, strict=True))})
        start = sum(space.size for space in self.spaces[:engine])
        ranks = [self.order.rank(start + row) for row in rows.tolist()]
        return min((rank for rank in ranks if rank is not None), default=None)

    def column(self, path: str, default: Any = 1) -> Array:
        """Every plan's value at a path; `default` where an engine has no such choice."""
        key = (path, type(default), default)
        found: Array = self._once(key, lambda: self.values(path, slice(None), default))
        return found

    def values(self, path: str, ranks: Ranks, default: Any = 1) -> Array:
        """The same of some plans alone."""
        engine, row = self.at(ranks)
        own = [np.flatnonzero(engine == number) for number in range(len(self.spaces))]
        columns = [
            space.column(path, row[some]) if path in space.place else np.full(len(some), default)
            for space, some in zip(self.spaces, own, strict=True)
        ]
        found = np.empty(len(engine), np.result_type(*columns) if columns else float)
        for some, values in zip(own, columns, strict=True):
            found[some] = values
        return found

    def splits_of(self, ranks: Ranks) -> Array:
        """A number for each of some plans, equal where they split the model in the same way on the same engine."""
        engine, row = self.at(ranks)
        found, first = np.zeros(len(engine), np.int64), 0
        for number, space in enumerate(self.spaces):
            own = np.flatnonzero(engine == number)
            axes = sorted({space.place[f"parallel.{name}"][0] for name in SIZES if f"parallel.{name}" in space.place})
            keys, count = space.take(row[own]).keys(axes)
            found[own] = first + keys.astype(np.int64)
            first += count
        return found

    def is_pareto(self, rank: int) -> bool:
        """Whether no other plan needs less GPU memory and is as fast; never of one that a node's RAM does not hold."""
        return bool(np.isin(self.places(np.array([rank])), self.front)[0])

    @property
    def front(self) -> Array:
        """The places of those that are, the best first."""
        found: Array = self._once("front", self._front)
        return found

    def _front(self) -> Array:
        figures = self.unordered
        time, host = figures.iteration_s, figures.host_memory_gib
        if time is None:
            return np.zeros(0, np.intp)
        fitting, others = self.order.groups
        if host is not None:
            held = host[others.places] <= self.job.cluster.host_memory_gib
            others = others.among(others.places[held])
        return front_of(fitting, others, figures.need_gib, time)

    def first_of(self, engine: int, path: str | None = None, value: object = None) -> int | None:
        """The rank of the first plan of one of `spaces`, or of the first there with this value; None without one."""
        space, code = self.spaces[engine], None
        if path is not None:
            axis, item = space.place[path]
            code = next((code for code, values in enumerate(space.axes[axis].values) if values[item] == value), None)
            if code is None:
                return None
        engines, rows = self.at(slice(LEAST))
        near = engines == engine
        if code is not None:
            near[near] = space.codes[axis][rows[near]] == code
        if near.any():
            return int(near.argmax())
        start = sum(one.size for one in self.spaces[:engine])
        own = np.arange(space.size) if code is None else np.flatnonzero(space.codes[axis] == code)
        return self.order.best(start + own)

    def _once(self, key: Any, compute: Callable[[], Any]) -> Any:
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]
