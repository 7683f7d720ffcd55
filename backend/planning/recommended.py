"""The plan that is recommended to a user who does not want to choose among hundreds."""

import numpy as np

from backend.estimate.memory.fit import HEADROOM, is_memory_settled
from backend.planning.plans import Plans


def recommended(plans: Plans, engine: int | None = None) -> int | None:
    """Return the rank of the recommended plan, of all plans or of one of `spaces`; None if there is no plan.

    It is the fastest plan. If that leaves less than HEADROOM of the GPU free, it is the fastest that leaves HEADROOM,
    if there is one. HEADROOM does not count if the user sets a memory margin or if a run has calibrated the memory.
    """
    first = plans.first_of(engine) if engine is not None else 0 if len(plans) else None
    if first is None or first >= plans.fitting or not is_tight(plans, first):
        return first
    roomy = np.flatnonzero(plans.unordered.need_gib <= (1 - HEADROOM) * plans.gpu.memory_gib)
    if engine is not None:
        start = sum(space.size for space in plans.spaces[:engine])
        roomy = roomy[(roomy >= start) & (roomy < start + plans.spaces[engine].size)]
    rank = plans.order.best(roomy)
    return rank if rank is not None and rank < plans.fitting else first


def is_tight(plans: Plans, rank: int) -> bool:
    """Return whether a plan leaves less than HEADROOM free, if HEADROOM counts and speeds are known."""
    figures = plans.figures_of(slice(rank, rank + 1))
    if figures.iteration_s is None or is_memory_settled(plans.job):
        return False
    return bool(figures.need_gib[0] > (1 - HEADROOM) * plans.gpu.memory_gib)
