"""Which plan to take for whoever does not want to choose among hundreds."""

from backend.job.job import Job
from backend.planning.plans import Plans

ROOM = 0.05
"""What stays free of each GPU while nothing says how far computed memory can be trusted: the margin that the words of
`cluster.memory_margin` advise."""


def recommended(plans: Plans) -> int:
    """The rank of that plan: the fastest, unless it leaves less than ROOM of the GPU and a slower one does not.

    A margin of the user's own decides instead, and so does a run that has calibrated the memory. Raises IndexError
    where there is no plan.
    """
    if not len(plans):
        raise IndexError(0)
    if not plans.fitting or not is_tight(plans, 0):
        return 0
    ranks = [rank for place in plans.front.tolist() if (rank := plans.order.rank(place)) is not None]
    return next((rank for rank in ranks if rank < plans.fitting and not is_tight(plans, rank)), 0)


def is_tight(plans: Plans, rank: int) -> bool:
    """Whether a plan leaves less than ROOM, where that matters and speeds are known."""
    figures = plans.figures_of(slice(rank, rank + 1))
    if figures.iteration_s is None or _is_decided(plans.job):
        return False
    return bool(figures.need_gib[0] > (1 - ROOM) * plans.gpu.memory_gib)


def _is_decided(job: Job) -> bool:
    return bool(job.cluster.memory_margin) or job.cluster.calibration.memory_ratio is not None
