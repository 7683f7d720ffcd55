"""How long the GPU waits in a step until the CPU has started the next operations."""

from dataclasses import replace

from backend.estimate.estimate import Estimate, estimate, estimate_memory
from backend.estimate.time.calibrated import time_ratio
from backend.estimate.time.timing import step_of, time_context_of, timed_machine
from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import Problem, errors
from backend.job.rules import check

LONG_WAIT = 0.2
"""The share of a step in which the GPU waits that deserves a note."""


def host_wait_share(job: Job, figures: Estimate) -> float:
    """Return the share of a step that a CPU without any delay would save; 0 if the time cannot be estimated."""
    gpu, shape = resolve_gpu(job.cluster), resolve_model(job.model)
    machine = timed_machine(job, gpu)
    if machine is None or figures.iteration_s is None:
        return 0.0
    memory = estimate_memory(job, shape, gpu)
    time_context = time_context_of(job, shape, machine, memory.plan, memory.traits, memory.layers)
    at_once = replace(time_context, efficiency=replace(time_context.efficiency, host_s=0.0))
    step = step_of(job, at_once, memory.layers, memory.trained, memory.stages)
    return 1 - time_ratio(job.cluster, machine) * float(step.iteration_s) / figures.iteration_s


def waits_for_host(job: Job, figures: Estimate) -> list[Problem]:
    """Return a note if the GPU waits for the CPU in much of a step, and a larger micro-batch if one helps and fits."""
    share = host_wait_share(job, figures)
    if figures.iteration_s is None or share < LONG_WAIT:
        return []
    values = {"share": f"{100 * share:.0f}"}
    note = Problem(code="gpu_waits_for_cpu", field="training.micro_batch_size", severity="note", values=values)
    if job.accumulation % 2:
        return [note]
    edit: dict[str, object] = {"training.micro_batch_size": 2 * job.training.micro_batch_size}
    if job.training.gradient_accumulation_steps is not None:
        edit["training.gradient_accumulation_steps"] = job.accumulation // 2
    changed = with_values(job, edit)
    if errors(check(changed)):
        return [note]
    larger = estimate(changed)
    if larger.fit != "fits" or larger.iteration_s is None or larger.iteration_s >= figures.iteration_s:
        return [note]
    seconds = {"seconds": f"{figures.iteration_s:.2g}", "larger": f"{larger.iteration_s:.2g}"}
    return [replace(note, code="larger_micro_batch_pays", values={**values, **seconds}, edit=edit)]
