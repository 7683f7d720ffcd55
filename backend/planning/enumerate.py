"""Enumeration of every legal plan of a job at its global batch, on every engine of its environment, ranked by speed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from backend.estimate.array_ops import Array
from backend.estimate.batched import Figures, Parts, PlanBatch, evaluate
from backend.estimate.memory.fit import surely_fits_gib
from backend.job.batch import planned_batch
from backend.job.job import Job, Parallel
from backend.job.model import ModelShape
from backend.job.presets import Gpu, resolve_gpu, resolve_model
from backend.job.problems import ProblemsError
from backend.job.rules import RULES, check_resolved
from backend.job.rules.batched import Factors, Legal, Space, legal
from backend.job.traits import TRAITS, EngineName
from backend.planning.arrange import in_order
from backend.planning.lazy_sort import Group, Mask, Order
from backend.planning.plans import Plans, needs_other_engine
from backend.planning.space import ACCUMULATION, CHOSEN, CUT, MICRO_BATCH, SIZES, listed_plans, space_of

_OF_PARALLEL = (*(f"parallel.{name}" for name in (*SIZES, *CUT, "sequence", "distributed_optimizer")), *CHOSEN)
EDITED = ("engine", *_OF_PARALLEL, MICRO_BATCH, ACCUMULATION)
"""Job paths that the choice of a plan may change."""


def engines_of(job: Job) -> tuple[EngineName, ...]:
    """Return the engines of the job's environment."""
    environment = job.traits.environment
    return tuple(name for name, traits in TRAITS.items() if traits.environment == environment)  # type: ignore[misc]


def enumerate_plans(
    job: Job,
    engines: Sequence[EngineName] | None = None,
    global_batch: int | None = None,
    beyond: Mapping[str, int] | None = None,
) -> Plans:
    """Return every legal plan, best first.

    - Plans that fit by the upper bound of their need come first, sorted by speed. Plans that may fit follow, sorted by
      speed. Plans whose computed need is too large are last, sorted by the memory that they need: of a GPU, and of a
      node's RAM if that is known, each as a share of what there is.
    - If times are not known, plans are sorted by bubble, and plans that offload come last: offloading costs time on
      any GPU.
    - Among the plans that fit, and among those that may fit, plans of an engine that a rule warns of come last (ZeRO-3
      and FSDP on CPU nodes): they train wrongly, or need more memory than is computed. So do those of an engine that a
      rule refuses until a setting changes.

    `engines` defaults to engines_of, `global_batch` to planned_batch. `beyond` is as in space_of. Raises ProblemsError
    as estimate does: unknown GPU or model, or estimate_not_modelled if no engine is modelled.
    """
    shape, gpu = resolve_model(job.model), resolve_gpu(job.cluster)
    batch = global_batch or planned_batch(job)
    spaces = [space_of(job, shape, engine, batch, beyond) for engine in engines or engines_of(job)]
    arguments = (_bare(job), shape, gpu, batch, [(factors[0].job.engine, _identity(factors)) for factors in spaces])
    key = (job.training.method, job.world_size, batch)
    cached = _newest.get(key)
    if cached is None or cached[0] != arguments:
        # The spaces are kept so that no other array gets the identity of theirs.
        cached = (arguments, spaces, _enumerate(job, shape, gpu, batch, spaces))
        _keep(key, cached)
    return replace(cached[2], job=job)


class _Answer(NamedTuple):
    """What the rules answered about the plans of one engine."""

    factors: Factors
    shape: ModelShape
    gpu: Gpu
    legal: Legal
    batch: PlanBatch | None
    """The legal plans as `evaluate` reads them; None if there are none."""
    is_listed: Mask | None
    """Which of them are listed; None if all are."""


_Key = tuple[str, int, int]
_newest: dict[_Key, tuple[Any, list[Factors], Plans]] = {}
"""The newest plans for each method, number of ranks and global batch. The choice of a plan enumerates the same plans
again, and strategies may be compared at another batch meanwhile."""
_legal: dict[_Key, _Answer] = {}
"""The newest answer of the rules for each engine, number of ranks and global batch. A user who compares micro-batches
switches between batches, and smallest_nodes.py alternates between two numbers of ranks."""
_MAX_NEWEST, _MAX_ANSWERS, _MAX_PLANS = 6, 64, 4_000_000
"""Limits of these caches; a plan takes about 50 bytes."""


def _keep(key: _Key, newest: tuple[Any, list[Factors], Plans]) -> None:
    """Keep the newest plans."""
    _newest.pop(key, None)
    _newest[key] = newest
    for oldest in list(_newest)[:-_MAX_NEWEST]:
        _newest.pop(oldest, None)  # another thread may have removed it


def _bare(job: Job) -> Job:
    """Return the job without the values that the choice of a plan changes."""
    defaults = Parallel()
    names = [path.removeprefix("parallel.") for path in _OF_PARALLEL]
    parallel = replace(job.parallel, **{name: getattr(defaults, name) for name in names})
    training = replace(job.training, micro_batch_size=1, gradient_accumulation_steps=1)
    return replace(job, engine="llamafactory-megatron", parallel=parallel, training=training)


def _identity(factors: Factors) -> list[int]:
    """Return numbers that are equal for equal arguments of `space_of`: it returns the same arrays."""
    return [id(space.codes) for space in factors]


def _enumerate(job: Job, shape: ModelShape, gpu: Gpu, batch: int, all_factors: Sequence[Factors]) -> Plans:
    rejected: Counter[str] = Counter()
    spaces, evaluated, listed, failures = [], [], [], []
    for factors in all_factors:
        answer = _legal_of(factors, shape, gpu)
        rejected.update(answer.legal.rejected)
        space = replace(answer.legal.space, job=factors[0].job)
        if answer.batch is None:
            continue
        try:
            evaluated.append(evaluate(space.job, shape, gpu, answer.batch))
        except ProblemsError as error:
            failures.append(error)
            rejected[error.problems[0].code] += space.size
            continue
        spaces.append(space)
        listed.append(np.ones(space.size, bool) if answer.is_listed is None else answer.is_listed)
    if failures and not spaces:
        raise failures[0]
    return _ranked(job, shape, gpu, batch, spaces, evaluated, listed, rejected)


def _legal_of(factors: Factors, shape: ModelShape, gpu: Gpu) -> _Answer:
    """Return the legal plans. Most edits change no value that the rules read. Then the newest answer is valid."""
    job = factors[0].job
    key = (job.engine, job.world_size, job.training.global_batch_size or 0)
    answer = _legal.get(key)
    if (
        answer is None
        or _identity(answer.factors) != _identity(factors)
        or (answer.shape, answer.gpu) != (shape, gpu)
        or not answer.legal.holds_for(job)
    ):
        legal_plans, batch, is_listed = legal(factors, shape, gpu, RULES), None, None
        if legal_plans.space.size:
            legal_plans, batch = in_order(legal_plans)
            is_listed = listed_plans(legal_plans.space, shape)
        answer = _Answer(factors, shape, gpu, legal_plans, batch, is_listed)
    _keep_legal(key, answer)
    return answer


def _keep_legal(newest: _Key, answer: _Answer) -> None:
    """Keep the newest answers, up to the limits."""
    _legal.pop(newest, None)
    _legal[newest] = answer
    plans = 0
    for number, (key, cached) in enumerate(reversed(list(_legal.items()))):
        plans += cached.legal.space.size
        if number and (number >= _MAX_ANSWERS or plans > _MAX_PLANS):
            _legal.pop(key, None)


def _ranked(
    job: Job,
    shape: ModelShape,
    gpu: Gpu,
    batch: int,
    spaces: list[Space],
    evaluated: list[tuple[Figures, Parts | None]],
    listed: list[Mask],
    rejected: Mapping[str, int],
) -> Plans:
    joined: dict[str, Any] = {name: _joined(name, [figures for figures, _ in evaluated]) for name in _FIGURES}
    figures = Figures(**joined)
    slowness = figures.iteration_s
    if slowness is None:
        offloads = [space.job.traits.offloads != "none" for space in spaces]
        slowness = figures.bubble_fraction + np.repeat(offloads, [space.size for space in spaces])
    warned = [needs_other_engine(check_resolved(space.job, shape, gpu)) for space in spaces]
    if any(warned):
        after_all = 1 + slowness.max(initial=0)
        slowness = slowness + after_all * np.repeat(warned, [space.size for space in spaces])
    fits = np.asarray(figures.fits, bool)
    is_listed = np.concatenate(listed) if listed else fits

    limits = [surely_fits_gib(space.job, gpu.memory_gib) for space in spaces]
    is_sure = figures.need_gib <= np.repeat(limits, [space.size for space in spaces])
    members = [np.flatnonzero(is_listed & fits & is_sure), np.flatnonzero(is_listed & fits & ~is_sure)]
    sure, tight = (Group(indices, slowness, figures.need_gib) for indices in members)
    others = Group(np.flatnonzero(is_listed & ~fits), _need(job, gpu, figures))
    return Plans(
        job=job,
        shape=shape,
        gpu=gpu,
        global_batch=batch,
        spaces=tuple(spaces),
        unordered=figures,
        order=Order((sure, tight, others)),
        parts=tuple(parts for _, parts in evaluated),
        rejected=dict(rejected),
    )


_FIGURES = tuple(field.name for field in fields(Figures))


def _joined(name: str, figures: list[Figures]) -> Array | None:
    columns = [getattr(engine_figures, name) for engine_figures in figures]
    if not columns:
        return np.zeros(0)
    return None if any(values is None for values in columns) else np.concatenate(columns)


def _need(job: Job, gpu: Gpu, figures: Figures) -> Array:
    """Return the GiB of a GPU that each plan needs. If it needs a larger share of a node's RAM, that share counts."""
    gpu_gib, host = figures.need_gib, figures.host_memory_gib
    memory_gib = job.cluster.host_memory_gib
    if host is None or memory_gib is None:
        return gpu_gib
    gib: Array = np.maximum(gpu_gib, host * (gpu.memory_gib / memory_gib))
    return gib
