"""Every legal plan of a job at its global batch, of every engine that its environment has, ranked by speed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from backend.estimate.batched import Figures, Many, Parts, evaluate
from backend.job.batch import planned_batch
from backend.job.job import Job, Parallel
from backend.job.model import ModelShape
from backend.job.presets import Gpu, resolve_gpu, resolve_model
from backend.job.problems import ProblemsError
from backend.job.rules import RULES
from backend.job.rules.batched import Factors, Legal, Space, legal
from backend.job.traits import TRAITS, EngineName
from backend.planning.arrange import in_order
from backend.planning.order import Array, Group, Order
from backend.planning.plans import Plans
from backend.planning.space import ACCUMULATION, CHOSEN, CUT, MICRO_BATCH, SIZES, offered, space_of

_OF_PARALLEL = (*(f"parallel.{name}" for name in (*SIZES, *CUT, "sequence", "distributed_optimizer")), *CHOSEN)
EDITED = ("engine", *_OF_PARALLEL, MICRO_BATCH, ACCUMULATION)
"""What choosing a plan may write."""


def engines_of(job: Job) -> tuple[EngineName, ...]:
    """The engines that the job's environment has."""
    environment = job.traits.environment
    return tuple(name for name, traits in TRAITS.items() if traits.environment == environment)  # type: ignore[misc]


def enumerate_plans(
    job: Job,
    engines: Sequence[EngineName] | None = None,
    global_batch: int | None = None,
    beyond: Mapping[str, int] | None = None,
) -> Plans:
    """Every legal plan: those that fit first, the fastest before others; then those that do not, by their need.

    The need is of a GPU's memory, and of a node's RAM where that is known: of each as a share of what there is.
    Without times the bubble takes their place, and plans that offload come last: that costs time on any GPU.

    The plans are of `engines`, or else of engines_of; of `global_batch`, or else of planned_batch; `beyond` as in
    space_of. Raises ProblemsError as estimate does: unknown GPU or model, estimate_not_modelled where no engine is
    modelled.
    """
    shape, gpu = resolve_model(job.model), resolve_gpu(job.cluster)
    wanted = global_batch or planned_batch(job)
    spaces = [space_of(job, shape, engine, wanted, beyond) for engine in engines or engines_of(job)]
    key = (_bare(job), shape, gpu, wanted, [(factors[0].job.engine, _identity(factors)) for factors in spaces])
    asked = (job.training.method, job.world_size, wanted)
    kept = _newest.get(asked)
    if kept is None or kept[0] != key:
        kept = (key, spaces, _enumerate(job, shape, gpu, wanted, spaces))
        _keep(_newest, asked, kept, 6)
    plans: Plans = kept[2]
    return replace(plans, job=job)


Known = dict[tuple[str, int, int], tuple[Any, ...]]
_newest: Known = {}
"""The newest answer for each method, number of ranks and global batch: choosing one of its plans asks for the same
plans again, and strategies may be compared at another batch meanwhile."""
_legal: Known = {}
"""The newest answer of the rules for each engine, number of ranks and global batch: who compares micro-batches goes to
and fro between batches, mixed.py asks about two numbers of ranks in turn."""
_MOST_ANSWERS, _MOST_PLANS = 64, 4_000_000
"""What is kept of these at most; a plan takes some 50 bytes."""


def _keep(known: Known, asked: tuple[str, int, int], found: tuple[Any, ...], most: int) -> None:
    """Keep the newest answers."""
    known.pop(asked, None)
    known[asked] = found
    for oldest in list(known)[:-most]:
        known.pop(oldest, None)  # another thread may have


def _bare(job: Job) -> Job:
    """The job without what choosing a plan writes."""
    defaults = Parallel()
    names = [path.removeprefix("parallel.") for path in _OF_PARALLEL]
    parallel = replace(job.parallel, **{name: getattr(defaults, name) for name in names})
    training = replace(job.training, micro_batch_size=1, gradient_accumulation_steps=1)
    return replace(job, engine="llamafactory-megatron", parallel=parallel, training=training)


def _identity(factors: Factors) -> list[int]:
    """Equal for the same question to `space_of`, whose arrays are kept."""
    return [id(space.codes) for space in factors]


def _enumerate(job: Job, shape: ModelShape, gpu: Gpu, wanted: int, asked: Sequence[Factors]) -> Plans:
    rejected: Counter[str] = Counter()
    spaces, evaluated, listed, failures = [], [], [], []
    for factors in asked:
        found, many, listing = _legal_of(factors, shape, gpu)
        rejected.update(found.rejected)
        space = replace(found.space, job=factors[0].job)
        if many is None:
            continue
        try:
            evaluated.append(evaluate(space.job, shape, gpu, many))
        except ProblemsError as error:
            failures.append(error)
            rejected[error.problems[0].code] += space.size
            continue
        spaces.append(space)
        listed.append(np.ones(space.size, bool) if listing is None else listing)
    if failures and not spaces:
        raise failures[0]
    return _ranked(job, shape, gpu, wanted, spaces, evaluated, listed, rejected)


def _legal_of(factors: Factors, shape: ModelShape, gpu: Gpu) -> tuple[Legal, Many | None, Array | None]:
    """The legal plans, those as `evaluate` reads them (None where there are none), and which of them are listed.

    Most edits change nothing that the rules read: then their newest answer holds.
    """
    job = factors[0].job
    asked = (job.engine, job.world_size, job.training.global_batch_size or 0)
    kept = _legal.get(asked)
    if kept:
        old, *known, found, many, listing = kept
        if _identity(old) == _identity(factors) and known == [shape, gpu] and found.holds_for(job):
            _keep_legal(asked, kept)
            return found, many, listing
    found, many, listing = legal(factors, shape, gpu, RULES), None, None
    if found.space.size:
        found, many = in_order(found)
        listing = offered(found.space, shape)
    _keep_legal(asked, (factors, shape, gpu, found, many, listing))
    return found, many, listing


def _keep_legal(asked: tuple[str, int, int], answer: tuple[Any, ...]) -> None:
    """Keep the newest answers, as many as there is room for."""
    _legal.pop(asked, None)
    _legal[asked] = answer
    kept, plans = list(_legal.items()), 0
    for number, (key, (*_, found, _, _)) in enumerate(reversed(kept)):
        plans += found.space.size
        if number and (number >= _MOST_ANSWERS or plans > _MOST_PLANS):
            _legal.pop(key, None)


def _ranked(
    job: Job,
    shape: ModelShape,
    gpu: Gpu,
    wanted: int,
    spaces: list[Space],
    evaluated: list[tuple[Figures, Parts | None]],
    listed: list[Array],
    rejected: Mapping[str, int],
) -> Plans:
    joined: dict[str, Any] = {name: _joined(name, [figures for figures, _ in evaluated]) for name in _FIGURES}
    figures = Figures(**joined)
    slowness = figures.iteration_s
    if slowness is None:
        offloads = [space.job.traits.offloads != "none" for space in spaces]
        slowness = figures.bubble_fraction + np.repeat(offloads, [space.size for space in spaces])
    fits = np.asarray(figures.fits, bool)
    is_listed = np.concatenate(listed) if listed else fits
    # Those that fit, the fastest of them before others; those that do not by how much they need.
    fitting = Group(np.flatnonzero(fits & is_listed), slowness, figures.need_gib)
    others = Group(np.flatnonzero(~fits & is_listed), _need(job, gpu, figures))
    return Plans(
        job=job,
        shape=shape,
        gpu=gpu,
        global_batch=wanted,
        spaces=tuple(spaces),
        unordered=figures,
        order=Order((fitting, others)),
        parts=tuple(parts for _, parts in evaluated),
        rejected=dict(rejected),
    )


_FIGURES = tuple(one.name for one in fields(Figures))


def _joined(name: str, figures: list[Figures]) -> Array | None:
    parts = [getattr(one, name) for one in figures]
    if not parts:
        return np.zeros(0)
    return None if any(values is None for values in parts) else np.concatenate(parts)


def _need(job: Job, gpu: Gpu, figures: Figures) -> Array:
    """GiB of a GPU that each plan needs; of a node's RAM, where it is known, as large a share where that is more."""
    needed, host = figures.need_gib, figures.host_memory_gib
    memory_gib = job.cluster.host_memory_gib
    if host is None or memory_gib is None:
        return needed
    found: Array = np.maximum(needed, host * (gpu.memory_gib / memory_gib))
    return found
