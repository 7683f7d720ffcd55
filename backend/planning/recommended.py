"""The plan that is recommended to a user who does not want to choose among hundreds."""

from dataclasses import replace

import numpy as np

from backend.estimate.memory.fit import HEADROOM, may_fit_gib, surely_fits_gib
from backend.job.rules import check_resolved
from backend.job.traits import EngineName
from backend.planning.lazy_sort import Indices
from backend.planning.plans import Plans, needs_other_engine


def recommended(plans: Plans, engine: int | None = None) -> int | None:
    """Return the rank of the recommended plan, of all plans or of one of `spaces`; None if there is no plan.

    It is the first plan. If only plans that may fit are left, it is the first that leaves HEADROOM of the GPU free, if
    there is one.
    """
    first = plans.first_of(engine) if engine is not None else 0 if len(plans) else None
    if first is None or not plans.surely_fitting <= first < plans.fitting:
        return first
    rank = plans.order.best(_needing_at_most(plans, (1 - HEADROOM) * plans.gpu.memory_gib, engine))
    return first if rank is None or rank >= plans.fitting else rank


def surely_fit_gib(plans: Plans) -> dict[EngineName, float]:
    """Return the computed memory up to which a plan surely fits, by engine: each has an interval of its own."""
    jobs = [replace(plans.job, engine=space.job.engine) for space in plans.spaces]
    return {job.engine: surely_fits_gib(job, plans.gpu.memory_gib) for job in jobs}


def possibly_fit_gib(plans: Plans) -> dict[EngineName, float]:
    """Return the computed memory above which a plan does not fit, by engine."""
    jobs = [replace(plans.job, engine=space.job.engine) for space in plans.spaces]
    return {job.engine: may_fit_gib(job, plans.gpu.memory_gib) for job in jobs}


def warned_engines(plans: Plans) -> list[EngineName]:
    """Return the engines that a rule warns of or refuses. Their plans come after others that fit, or that may fit."""
    jobs = [space.job for space in plans.spaces]
    return [job.engine for job in jobs if needs_other_engine(check_resolved(job, plans.shape, plans.gpu))]


def _needing_at_most(plans: Plans, gib: float, engine: int | None) -> Indices:
    """Return the plans, of all or of one of `spaces`, that need at most this memory."""
    roomy = np.flatnonzero(plans.unordered.need_gib <= gib)
    if engine is not None:
        start = sum(space.size for space in plans.spaces[:engine])
        roomy = roomy[(roomy >= start) & (roomy < start + plans.spaces[engine].size)]
    return roomy


def is_tight(plans: Plans, rank: int) -> bool:
    """Return whether a plan fits by its computed need, but not by the upper bound of it."""
    return plans.surely_fitting <= rank < plans.fitting


def tight_and_faster(plans: Plans, rank: int) -> int:
    """Return how many plans that may not fit are faster than a plan. The first of them is at `surely_fitting`."""
    _, tight, _ = plans.order.groups
    return tight.before(int(plans.indices(np.array([rank]))[0]))
