"""Every legal plan of a job at its global batch, of every engine that its environment has, ranked by speed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from backend.estimate import Estimate, estimate_resolved
from backend.estimate.many import OF_LAYERS, Columns, Figures, Many, evaluate, in_order, many_of
from backend.job.job import Job, Parallel
from backend.job.mapping import with_values
from backend.job.model import ModelShape
from backend.job.presets import Gpu, resolve_gpu, resolve_model
from backend.job.problems import Problem, ProblemsError
from backend.job.rules import RULES, check_resolved
from backend.job.rules.many import Legal, Space, legal
from backend.job.traits import TRAITS, EngineName
from backend.planning.space import ACCOUNTS, MICRO_BATCH, RECOMPUTE, SIZES, recompute_of, space_of

Array = npt.NDArray[Any]
ACCUMULATION = "training.gradient_accumulation_steps"
_CHOSEN = tuple(f"parallel.{name}" for name in RECOMPUTE)
_OF_PARALLEL = (*(f"parallel.{name}" for name in (*SIZES, *ACCOUNTS, "sequence", "distributed_optimizer")), *_CHOSEN)
EDITED = ("engine", *_OF_PARALLEL, MICRO_BATCH, ACCUMULATION)
"""What choosing a plan may write."""


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
    rejected: Mapping[str, int]
    """How many plans each rule refused, by the code of the first rule that refused each."""
    known: dict[Any, Array] = field(default_factory=dict, compare=False, repr=False)
    """What was computed of these plans already."""

    @property
    def candidates(self) -> "Plans":
        """The plans themselves."""
        return self

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
            copies = space.job.world_size // int(self.model_parallel[rank])
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

    def rank_of(self, job: Job) -> int | None:
        """The place of a job's plan among these; None where it is not legal."""
        parallel = job.parallel
        engines = [space.job.engine for space in self.spaces]
        if job.engine not in engines:
            return None
        effect: dict[str, Any] = {MICRO_BATCH: job.training.micro_batch_size}
        if job.traits.is_megatron:
            effect |= {f"parallel.{name}": getattr(parallel, name) for name in (*SIZES, *ACCOUNTS)}
            effect["parallel.distributed_optimizer"] = parallel.distributed_optimizer
            # What has no effect has one value among the plans.
            effect["parallel.sequence"] = parallel.sequence or parallel.tensor == 1 or parallel.expert > 1
        part, wanted = engines.index(job.engine), recompute_of(job)
        rows = self.spaces[part].rows_with({**effect, **dict(zip(_CHOSEN, wanted, strict=True))})
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
    def model_parallel(self) -> Array:
        """Ranks that hold one copy of the model."""
        tensor, pipeline, context = (self.column(f"parallel.{name}") for name in ("tensor", "pipeline", "context"))
        return tensor * pipeline * context

    @property
    def pareto(self) -> Array:
        """Whether no other plan needs less memory and is as fast."""
        return self._once("pareto", self._pareto)

    def _pareto(self) -> Array:
        memory, time = self.figures.reserved_gib, self.figures.iteration_s
        found = np.zeros(len(self), bool)
        if time is None:
            return found
        # Those that fit come by time; those that do not come by memory, and need more than any that fits.
        fitting = int(self.figures.fits.sum())
        found[:fitting] = memory[:fitting] < _least_before(memory[:fitting])
        found[fitting:] = time[fitting:] < np.minimum(_least_before(time[fitting:]), time[0] if fitting else np.inf)
        # Of some that need just as much the last is the fastest.
        larger = np.flatnonzero(found[fitting:]) + fitting
        found[larger[:-1][memory[larger[:-1]] == memory[larger[1:]]]] = False
        return found

    def _once(self, key: Any, compute: Callable[[], Array]) -> Array:
        if key not in self.known:
            self.known[key] = compute()
        return self.known[key]


def _least_before(values: Array) -> Array:
    """For each value the least of those before it."""
    return np.minimum.accumulate(np.concatenate(([np.inf], values)))[:-1]


def candidates(job: Job) -> Sequence[Candidate]:
    """Every legal plan: those that fit first, the fastest before others; then those that do not, by their need.

    Without times the bubble takes their place.

    Raises ProblemsError as estimate does: unknown GPU or model, estimate_not_modelled where no engine is modelled.
    """
    return enumerate_plans(job)


def engines_of(job: Job) -> tuple[EngineName, ...]:
    """The engines that the job's environment has."""
    environment = job.traits.environment
    return tuple(name for name, traits in TRAITS.items() if traits.environment == environment)  # type: ignore[misc]


def enumerate_plans(job: Job, engines: Sequence[EngineName] | None = None) -> Plans:
    """`candidates`, with the count of refused plans by the code of the first rule that refused each.

    Without a wanted global batch (training.global_batch_size) the one of the job's present plan is kept. Raises as
    `candidates`.
    """
    shape, gpu = resolve_model(job.model), resolve_gpu(job.cluster)
    wanted = job.training.global_batch_size or job.global_batch
    spaces = [space_of(job, shape, engine, wanted) for engine in engines or engines_of(job)]
    key = (_bare(job), shape, gpu, wanted, [(space.job.engine, id(space.codes)) for space in spaces])
    asked = (job.training.method, job.world_size)
    kept = _newest.get(asked)
    if kept is None or kept[0] != key:
        kept = (key, spaces, _enumerate(job, shape, gpu, wanted, spaces))
        _keep(_newest, asked, kept, 6)
    plans: Plans = kept[2]
    return replace(plans, job=job)


Known = dict[tuple[str, int], tuple[Any, ...]]
_newest: Known = {}
"""The newest answer for each method and number of ranks: choosing one of its plans asks for the same plans again."""
_legal: Known = {}
"""The newest answer of the rules for each engine and number of ranks: mixed.py asks about two numbers in turn."""


def _keep(
    known: dict[tuple[str, int], tuple[Any, ...]], asked: tuple[str, int], found: tuple[Any, ...], most: int
) -> None:
    """Keep the newest answers."""
    known.pop(asked, None)
    known[asked] = found
    for oldest in list(known)[:-most]:
        del known[oldest]


def _bare(job: Job) -> Job:
    """The job without what choosing a plan writes."""
    defaults = Parallel()
    names = [path.removeprefix("parallel.") for path in _OF_PARALLEL]
    parallel = replace(job.parallel, **{name: getattr(defaults, name) for name in names})
    training = replace(job.training, micro_batch_size=1, gradient_accumulation_steps=1)
    return replace(job, engine="llamafactory-megatron", parallel=parallel, training=training)


def _enumerate(job: Job, shape: ModelShape, gpu: Gpu, wanted: int, asked: Sequence[Space]) -> Plans:
    rejected: Counter[str] = Counter()
    spaces, figures, failures = [], [], []
    for whole in asked:
        found, many = _legal_of(whole, shape, gpu)
        rejected.update(found.rejected)
        space = replace(found.space, job=whole.job)
        if many is None:
            continue
        try:
            figures.append(evaluate(space.job, shape, gpu, many))
        except ProblemsError as error:
            failures.append(error)
            rejected[error.problems[0].code] += space.size
            continue
        spaces.append(space)
    if failures and not spaces:
        raise failures[0]
    return _ranked(job, shape, gpu, wanted, spaces, figures, rejected)


def _legal_of(space: Space, shape: ModelShape, gpu: Gpu) -> tuple[Legal, Many | None]:
    """Most edits change nothing that the rules read: then their newest answer holds. None: nothing is legal."""
    asked = (space.job.engine, space.job.world_size)
    kept = _legal.get(asked)
    if kept:
        codes, *known, found, many = kept
        if codes is space.codes and known == [shape, gpu] and found.holds_for(space.job):
            return found, many
    found, many = legal(space, shape, gpu, RULES), None
    if found.space.size:
        ordered = found.space.take(in_order(_columns(found.space), _alike(found.space)))
        found, many = replace(found, space=ordered), many_of(_columns(ordered), _choices(ordered), _alike(ordered))
    _keep(_legal, asked, (space.codes, shape, gpu, found, many), 16)
    return found, many


def _alike(space: Space) -> Array:
    """A number for each plan, equal where a layer costs the same."""
    keys, _ = space.keys(sorted({space.place[path][0] for path in OF_LAYERS if path in space.place}))
    return keys


def _choices(space: Space) -> tuple[tuple[str, tuple[str, ...]], ...]:
    axis, _ = space.place["parallel.recompute"]
    return tuple((choice[0], choice[1]) for choice in space.axes[axis].values)


def _columns(space: Space) -> dict[str, Any]:
    """The plans as estimate/many.py reads them."""
    columns: dict[str, Any] = {path: space.column(path) for path in space.place if path not in _CHOSEN}
    axis, _ = space.place["parallel.recompute"]
    columns["parallel.recompute"] = space.codes[axis]
    layers = np.array([choice[2] or 1 for choice in space.axes[axis].values])
    columns["parallel.recompute_num_layers"] = layers[space.codes[axis]]
    wanted = space.job.training.global_batch_size
    columns[ACCUMULATION] = wanted // (columns[MICRO_BATCH] * _copies(space.job, columns))
    return columns


def _copies(job: Job, columns: Columns) -> Any:
    sizes = [columns[path] for path in ("parallel.tensor", "parallel.pipeline", "parallel.context") if path in columns]
    return job.world_size // (np.prod(sizes, axis=0) if sizes else 1)


def _ranked(
    job: Job,
    shape: ModelShape,
    gpu: Gpu,
    wanted: int,
    spaces: list[Space],
    figures: list[Figures],
    rejected: Mapping[str, int],
) -> Plans:
    part = np.repeat(np.arange(len(spaces)), [space.size for space in spaces])
    row = np.concatenate([np.arange(space.size) for space in spaces]) if spaces else np.zeros(0, int)
    joined: dict[str, Any] = {name: _joined(name, figures) for name in Figures.__dataclass_fields__}
    order = _order(**joined)
    ordered: dict[str, Any] = {name: None if values is None else values[..., order] for name, values in joined.items()}
    return Plans(
        job=job,
        shape=shape,
        gpu=gpu,
        global_batch=wanted,
        spaces=tuple(spaces),
        part=part[order],
        row=row[order],
        figures=Figures(**ordered),
        rejected=dict(rejected),
    )


def _joined(name: str, figures: list[Figures]) -> Array | None:
    parts = [getattr(one, name) for one in figures]
    if not parts:
        return np.zeros(0)
    return None if any(values is None for values in parts) else np.concatenate(parts, axis=-1)


def _order(*, reserved_gib: Array, fits: Array, bubble_fraction: Array, iteration_s: Array | None, **_: Any) -> Array:
    """Those that fit first, the fastest of them before others; those that do not fit by how much they need."""
    fitting = fits.astype(bool)
    slowness = bubble_fraction if iteration_s is None else iteration_s
    return np.lexsort((reserved_gib, np.where(fitting, slowness, 0.0), ~fitting))
