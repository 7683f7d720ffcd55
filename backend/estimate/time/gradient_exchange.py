"""By which algorithm of NCCL a job's gradients are summed."""

from backend.estimate.estimate import modelled
from backend.estimate.time.collectives import Algorithm
from backend.estimate.time.data_parallel import gradient_algorithm
from backend.estimate.time.efficiency import machine_of
from backend.estimate.time.timing import setting_of
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu


def gradient_exchange(job: Job, shape: ModelShape, gpu: Gpu) -> Algorithm | None:
    """The algorithm among the copies of the first stage; None where there is one copy or the GPU's speed is unknown.

    Raises what `estimate` raises.
    """
    machine = machine_of(job.cluster, gpu, job.training.precision)
    found = modelled(job, shape, gpu)
    if machine is None or gpu.device == "cpu" or found.plan.data * found.plan.context == 1:
        return None
    return gradient_algorithm(
        setting_of(job, machine, found.plan, found.traits, found.layers), found.memories[0].parameters
    )
