"""How many times faster a job runs on all its nodes than on one of them."""

from dataclasses import replace

from backend.estimate.estimate import Estimate, estimate_resolved
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import errors
from backend.job.rules import check_resolved


def speed_up(job: Job, shape: ModelShape, gpu: Gpu, own: Estimate | None = None) -> float | None:
    """Return the tokens/s of a job over those of the same plan and global batch on one node.

    `own` is the estimate of the job. The single node accumulates more micro-batches instead of having more copies of
    the model, and the plan need not fit it. Returns None if the plan needs several nodes, or if times are unknown.
    """
    single_node = replace(
        job,
        cluster=replace(job.cluster, nodes=1, hosts=job.cluster.hosts[:1]),
        training=replace(job.training, global_batch_size=job.global_batch),
    )
    if errors(check_resolved(single_node, shape, gpu)):
        return None
    many = (own or estimate_resolved(job, shape, gpu)).tokens_per_s_per_gpu
    single = estimate_resolved(single_node, shape, gpu).tokens_per_s_per_gpu
    return job.cluster.nodes * many / single if many and single else None
