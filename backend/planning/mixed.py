"""What would help where one node's GPUs have less memory than the others': the plans without it."""

from dataclasses import dataclass, replace

from backend.job.batch import planned_batch
from backend.job.job import Job
from backend.job.presets import least_gpu, others_gib, smallest_hosts
from backend.job.problems import ProblemsError
from backend.planning.enumerate import enumerate_plans
from backend.planning.plans import Candidate, Plans


@dataclass(frozen=True, kw_only=True, slots=True)
class Smallest:
    """Nodes that hold all others back, and the best plan with and without them."""

    nodes: tuple[str, ...]
    least_gib: float
    others: int
    """Nodes that remain without them."""
    others_gib: float
    best: Candidate | None
    """Of all nodes, the fastest that fits; None where none does."""
    without: Candidate | None
    """Of the other nodes at the same global batch, likewise."""

    @property
    def helps(self) -> bool:
        """Whether the other nodes alone are faster together, or the only ones that can."""
        if self.without is None or self.best is None:
            return self.without is not None
        return (tokens_per_s(self.without) or 0.0) > (tokens_per_s(self.best) or 0.0)


def smallest_nodes(job: Job, plans: Plans) -> Smallest | None:
    """None where nodes do not differ, or where it is not said which of all they are.

    `plans` are the job's. Raises ProblemsError as `enumerate_plans`.
    """
    cluster, smallest = job.cluster, smallest_hosts(job.cluster)
    kept = tuple(host for host in cluster.hosts if host not in smallest)
    more = others_gib(cluster)
    if not smallest or more is None or len(cluster.hosts) != cluster.nodes:
        return None
    alone = replace(
        job,
        cluster=replace(cluster, nodes=len(kept), hosts=kept),
        training=replace(job.training, global_batch_size=planned_batch(job)),
    )
    engines = [space.job.engine for space in plans.spaces] or None
    try:
        others = _fastest(enumerate_plans(alone, engines))
    except ProblemsError:  # no engine is modelled on so few
        others = None
    return Smallest(
        nodes=tuple(host.name for host in smallest),
        least_gib=least_gpu(cluster).memory_gib,
        others=len(kept),
        others_gib=more,
        best=_fastest(plans),
        without=others,
    )


def _fastest(plans: Plans) -> Candidate | None:
    """The first of those that fit."""
    return plans[0] if plans.fitting else None


def tokens_per_s(candidate: Candidate) -> float | None:
    """Of all its GPUs together; None where their speed is not known."""
    rate = candidate.estimate.tokens_per_s_per_gpu
    return None if rate is None else rate * candidate.job.world_size
