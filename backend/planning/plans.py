"""The legal plans of a job as arrays, best first, and what a plan is when one is looked at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from backend.estimate import Estimate, estimate_resolved
from backend.estimate.many import PARTS, Figures, Parts
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import check_resolved
from backend.job.rules.many import Space
from backend.planning.space import (
    ACCOUNTS,
    ACCUMULATION,
    CHOSEN,
    MICRO_BATCH,
    SHARDED,
    SIZES,
    has_nothing_to_shard,
    recompute_of,
)

Array = npt.NDArray[Any]


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
    """The legal plans of each engine, unordered."""
    part: Array
    """Which of `spaces` a plan is in."""
    row: Array
    """Its place there."""
    figures: Figures
    parts: tuple[Parts | None, ...]
    """For each of `spaces` what the iteration's seconds are the sum of, by place there; None without times."""
    rejected: Mapping[str, int]
    """How many plans each rule refused, by the code of the first rule that refused each."""
    known: dict[Any, Array] = field(default_factory=dict, compare=False, repr=False)
    """What was computed of these plans already."""

    def __len__(self) -> int:
        return len(self.row)

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
            is_pareto=bool(self.pareto[rank]),
        )

    def edits(self, rank: int) -> dict[str, Any]:
        """Job path -> value: the edit that chooses a plan; keeps the global batch."""
        space = self.spaces[self.part[rank]]
        unsplit: dict[str, Any] = dict.fromkeys((f"parallel.{name}" for name in SIZES), 1)
        edits = {"engine": space.job.engine, **unsplit, **space.values(int(self.row[rank]))}
        if self.job.training.global_batch_size is None:
            together = prod(edits[f"parallel.{name}"] for name in ("tensor", "pipeline", "context"))
            copies = space.job.world_size // together
            edits[ACCUMULATION] = self.global_batch // (edits[MICRO_BATCH] * copies)
        return edits

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of what one unit of the global batch holds; a pair of DPO is two sequences."""
        return self.job.training.cutoff_len * (2 if self.job.training.stage == "dpo" else 1)

    def recompute(self, rank: int) -> tuple[str, tuple[str, ...], int | None]:
        """A plan's recompute, its modules, and the layers of a unit."""
        space = self.spaces[self.part[rank]]
        axis, _ = space.place["parallel.recompute"]
        found: tuple[str, tuple[str, ...], int | None] = space.axes[axis].values[space.codes[axis][self.row[rank]]]
        return found

    def parts_s(self, ranks: Array | slice) -> Array | None:
        """What the iteration's seconds of some plans are the sum of: a line for each of PARTS; None without times."""
        part, row = self.part[ranks], self.row[ranks]
        found = np.empty((len(PARTS), len(row)))
        for number, parts in enumerate(self.parts):
            if parts is None:
                return None
            own = np.flatnonzero(part == number)
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
            effect |= {f"parallel.{name}": getattr(parallel, name) for name in (*SIZES, *ACCOUNTS)}
            # What has no effect has one value among the plans.
            sizes = (parallel.tensor, parallel.pipeline, parallel.expert, parallel.expert_tensor)
            alone = has_nothing_to_shard(job.world_size, self.shape.experts, *sizes)
            effect[SHARDED] = parallel.distributed_optimizer or alone
            effect["parallel.sequence"] = parallel.sequence or parallel.tensor == 1 or parallel.expert > 1
        part, wanted = engines.index(job.engine), recompute_of(job)
        rows = self.spaces[part].rows_with({**effect, **dict(zip(CHOSEN, wanted, strict=True))})
        ranks = np.flatnonzero((self.part == part) & np.isin(self.row, rows)) if len(rows) else rows
        return int(ranks[0]) if len(ranks) else None

    def column(self, path: str, default: Any = 1) -> Array:
        """Every plan's value at a path; `default` where an engine has no such choice."""
        return self._once((path, type(default), default), lambda: self._column(path, default))

    def values(self, path: str, ranks: Array, default: Any = 1) -> Array:
        """The same of some plans alone."""
        if (path, type(default), default) in self.known:
            return self.column(path, default)[ranks]
        found, (part, row) = np.full(len(ranks), default), (self.part[ranks], self.row[ranks])
        for number, space in enumerate(self.spaces):
            if path in space.place:
                own = space.column(path, row[part == number])
                # `default` may stand for a number: True is 1.
                found = found.astype(np.result_type(found, own))
                found[part == number] = own
        return found

    @property
    def split(self) -> Array:
        """A number for each plan, equal where they split the model in the same way on the same engine."""
        return self._once("split", self._split)

    def _split(self) -> Array:
        keys, first = [], 0
        for space in self.spaces:
            found, count = space.keys(sorted({space.place[f"parallel.{name}"][0] for name in SIZES
                                              if f"parallel.{name}" in space.place}))  # fmt: skip
            keys.append(first + found.astype(np.int64))
            first += count
        return np.concatenate(keys)[self._once("place", self._places)] if keys else np.zeros(0, np.int64)

    def _column(self, path: str, default: Any) -> Array:
        parts = [space.column(path) if path in space.place else np.full(space.size, default) for space in self.spaces]
        return np.concatenate(parts)[self._once("place", self._places)] if parts else np.zeros(0)

    def _places(self) -> Array:
        """A plan's place in the arrays of all spaces together."""
        starts = np.cumsum([0, *(space.size for space in self.spaces)])
        return starts[self.part] + self.row

    @property
    def pareto(self) -> Array:
        """Whether no other plan needs less GPU memory and is as fast; never of one that a node's RAM does not hold."""
        return self._once("pareto", self._pareto)

    def _pareto(self) -> Array:
        memory, time = self.figures.reserved_gib, self.figures.iteration_s
        found = np.zeros(len(self), bool)
        if time is None:
            return found
        # Those that fit come by time; those that a GPU does not hold by memory, and need more than any that fits.
        fitting = int(self.figures.fits.sum())
        found[:fitting] = memory[:fitting] < _least_before(memory[:fitting])
        others, host = np.arange(fitting, len(self)), self.figures.host_memory_gib
        if host is not None:
            others = others[host[others] <= self.job.cluster.host_memory_gib]
        found[others] = time[others] < np.minimum(_least_before(time[others]), time[0] if fitting else np.inf)
        # Of some that need just as much the last is the fastest.
        larger = others[found[others]]
        found[larger[:-1][memory[larger[:-1]] == memory[larger[1:]]]] = False
        return found

    def _once(self, key: Any, compute: Callable[[], Array]) -> Array:
        if key not in self.known:
            self.known[key] = compute()
        return self.known[key]


def _least_before(values: Array) -> Array:
    """For each value the least of those before it."""
    return np.minimum.accumulate(np.concatenate(([np.inf], values)))[:-1]
