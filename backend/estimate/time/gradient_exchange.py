"""The NCCL algorithm that sums the gradients of a job."""

from backend.estimate.estimate import MemoryEstimate, estimate_memory
from backend.estimate.time.collectives import Algorithm
from backend.estimate.time.data_parallel import gradient_algorithm
from backend.estimate.time.efficiency import machine_of_job
from backend.estimate.time.timing import time_context_of
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu


def gradient_exchange(job: Job, shape: ModelShape, gpu: Gpu, memory: MemoryEstimate | None = None) -> Algorithm | None:
    """Return the algorithm among the copies of the first stage; `memory` is the result of `estimate_memory`.

    Returns None if there is one copy, or if the GPU's speed is unknown. Raises what `estimate` raises.
    """
    machine = machine_of_job(job, gpu)
    memory = memory or estimate_memory(job, shape, gpu)
    plan = memory.plan
    if machine is None or gpu.device == "cpu" or plan.data * plan.context == 1:
        return None
    time_context = time_context_of(job, shape, machine, plan, memory.traits, memory.layers)
    return gradient_algorithm(time_context, memory.stages[0].parameters)
