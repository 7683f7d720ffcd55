"""How much faster a job runs on all its nodes than on one of them."""

from dataclasses import replace

from backend.estimate.estimate import estimate_resolved
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import errors
from backend.job.rules import check_resolved


def speed_up(job: Job, shape: ModelShape, gpu: Gpu) -> float | None:
    """Tokens/s of the whole job over those of the same plan and global batch on one node, whether it fits there or not.

    The lone node accumulates more micro-batches instead of having more copies. None where the plan is no plan of one
    node, or times are not known.
    """
    alone = replace(
        job,
        cluster=replace(job.cluster, nodes=1, hosts=job.cluster.hosts[:1]),
        training=replace(job.training, global_batch_size=job.global_batch),
    )
    if errors(check_resolved(alone, shape, gpu)):
        return None
    many, one = (estimate_resolved(tried, shape, gpu).tokens_per_s_per_gpu for tried in (job, alone))
    return job.cluster.nodes * many / one if many and one else None
