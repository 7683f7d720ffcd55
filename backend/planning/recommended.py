"""The plan that is recommended to a user who does not want to choose among hundreds."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from backend.estimate.memory.fit import HEADROOM, is_memory_settled, may_fit_gib, surely_fits_gib
from backend.job.traits import EngineName
from backend.planning.lazy_sort import Indices
from backend.planning.plans import Plans


def recommended(plans: Plans, engine: int | None = None) -> int | None:
    """Return the rank of the recommended plan, of all plans or of one of `spaces`; None if there is no plan.

    It is the fastest plan that fits by the upper bound of its need. If there is none, it is the fastest that leaves
    HEADROOM of the GPU free, and else the fastest. If the user sets a memory margin, it is the fastest. Where speeds
    are not known, the order of enumerate_plans takes their place.
    """
    first = plans.first_of(engine) if engine is not None else 0 if len(plans) else None
    if first is None or first >= plans.fitting or not is_tight(plans, first):
        return first
    limits = surely_fit_gib(plans)
    for most in (limits, dict.fromkeys(limits, (1 - HEADROOM) * plans.gpu.memory_gib)):
        rank = plans.order.best(_needing_at_most(plans, most, engine))
        if rank is not None and rank < plans.fitting:
            return rank
    return first


def surely_fit_gib(plans: Plans) -> dict[EngineName, float]:
    """Return the computed memory up to which a plan surely fits, by engine: each has an interval of its own."""
    jobs = [replace(plans.job, engine=space.job.engine) for space in plans.spaces]
    return {job.engine: surely_fits_gib(job, plans.gpu.memory_gib) for job in jobs}


def possibly_fit_gib(plans: Plans) -> dict[EngineName, float]:
    """Return the computed memory above which a plan does not fit, by engine."""
    jobs = [replace(plans.job, engine=space.job.engine) for space in plans.spaces]
    return {job.engine: may_fit_gib(job, plans.gpu.memory_gib) for job in jobs}


def _needing_at_most(plans: Plans, gib: Mapping[EngineName, float], engine: int | None) -> Indices:
    """Return the plans, of all or of one of `spaces`, that need at most the memory given for their engine."""
    sizes = [space.size for space in plans.spaces]
    limits = np.repeat([gib[space.job.engine] for space in plans.spaces], sizes)
    roomy = np.flatnonzero(plans.unordered.need_gib <= limits)
    if engine is not None:
        start = sum(space.size for space in plans.spaces[:engine])
        roomy = roomy[(roomy >= start) & (roomy < start + plans.spaces[engine].size)]
    return roomy


def is_tight(plans: Plans, rank: int) -> bool:
    """Return whether the upper bound of a plan's need does not fit, if the user sets no memory margin."""
    figures, engine = plans.figures_of(slice(rank, rank + 1)), plans.at(slice(rank, rank + 1))[0][0]
    if is_memory_settled(plans.job):
        return False
    return bool(figures.need_gib[0] > surely_fit_gib(plans)[plans.spaces[engine].job.engine])
