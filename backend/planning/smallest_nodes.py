"""Plans without the nodes whose GPUs have the least memory, for a cluster whose nodes differ."""

from dataclasses import dataclass, replace

from backend.job.batch import planned_batch
from backend.job.job import Job
from backend.job.presets import least_gpu, others_gib, smallest_hosts
from backend.job.problems import ProblemsError
from backend.planning.enumerate import enumerate_plans
from backend.planning.plans import Candidate, Plans


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallestNodes:
    """Nodes whose GPU memory limits all nodes, and the best plan with and without them."""

    nodes: tuple[str, ...]
    least_gib: float
    others: int
    """Number of the other nodes."""
    others_gib: float
    best: Candidate | None
    """The fastest plan of all nodes that fits; None if none fits."""
    without: Candidate | None
    """The fastest plan of the other nodes that fits, at the same global batch; None if none fits."""

    @property
    def helps(self) -> bool:
        """Return whether the job is faster without these nodes, or fits only without them."""
        if self.without is None or self.best is None:
            return self.without is not None
        return (tokens_per_s(self.without) or 0.0) > (tokens_per_s(self.best) or 0.0)


def smallest_nodes(job: Job, plans: Plans) -> SmallestNodes | None:
    """Compare the job's `plans` with those of the other nodes.

    Returns None if nodes do not differ, or if the job does not say which nodes have less memory. Raises ProblemsError
    as enumerate_plans does.
    """
    cluster, smallest = job.cluster, smallest_hosts(job.cluster)
    other_hosts = tuple(host for host in cluster.hosts if host not in smallest)
    larger_gib = others_gib(cluster)
    if not smallest or larger_gib is None or len(cluster.hosts) != cluster.nodes:
        return None
    reduced = replace(
        job,
        cluster=replace(cluster, nodes=len(other_hosts), hosts=other_hosts),
        training=replace(job.training, global_batch_size=planned_batch(job)),
    )
    engines = [space.job.engine for space in plans.spaces] or None
    try:
        without = _fastest(enumerate_plans(reduced, engines))
    except ProblemsError:  # no engine is modelled on so few nodes
        without = None
    return SmallestNodes(
        nodes=tuple(host.name for host in smallest),
        least_gib=least_gpu(cluster).memory_gib,
        others=len(other_hosts),
        others_gib=larger_gib,
        best=_fastest(plans),
        without=without,
    )


def _fastest(plans: Plans) -> Candidate | None:
    return plans[0] if plans.fitting else None


def tokens_per_s(candidate: Candidate) -> float | None:
    """Return the speed of all GPUs of a plan together; None if it is not known."""
    rate = candidate.estimate.tokens_per_s_per_gpu
    return None if rate is None else rate * candidate.job.world_size
