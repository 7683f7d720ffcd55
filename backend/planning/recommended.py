"""Which plan to take for whoever does not want to choose among hundreds."""

import numpy as np

from backend.job.job import Job
from backend.planning.plans import Plans

ROOM = 0.05
"""What stays free of each GPU while nothing says how far computed memory can be trusted: the margin that the words of
`cluster.memory_margin` advise."""


def recommended(plans: Plans, engine: int | None = None) -> int | None:
    """The rank of that plan, of all or of one of `spaces`: the fastest, unless it leaves less than ROOM of the GPU and
    a slower one does not. None where there is no plan.

    A margin of the user's own decides instead, and so does a run that has calibrated the memory.
    """
    first = plans.first_of(engine) if engine is not None else 0 if len(plans) else None
    if first is None or first >= plans.fitting or not is_tight(plans, first):
        return first
    roomy = np.flatnonzero(plans.unordered.need_gib <= (1 - ROOM) * plans.gpu.memory_gib)
    if engine is not None:
        start = sum(space.size for space in plans.spaces[:engine])
        roomy = roomy[(roomy >= start) & (roomy < start + plans.spaces[engine].size)]
    rank = plans.order.best(roomy)
    return rank if rank is not None and rank < plans.fitting else first


def is_tight(plans: Plans, rank: int) -> bool:
    """Whether a plan leaves less than ROOM, where that matters and speeds are known."""
    figures = plans.figures_of(slice(rank, rank + 1))
    if figures.iteration_s is None or _is_decided(plans.job):
        return False
    return bool(figures.need_gib[0] > (1 - ROOM) * plans.gpu.memory_gib)


def _is_decided(job: Job) -> bool:
    return bool(job.cluster.memory_margin) or job.cluster.calibration.memory_ratio is not None
