"""Rows of benchmarks/gpu.py: runs of this machine, estimated as the product estimates their job."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from backend.estimate import estimate
from backend.estimate.estimate import estimate_memory
from backend.estimate.memory.fit import kind_of_run
from backend.estimate.memory.stage import RankParameters
from backend.estimate.time.efficiency import Efficiency, machine_of_job
from backend.estimate.time.schedule import iteration_time
from backend.estimate.time.step_time import Schedule
from backend.estimate.time.timing import step_of, time_context_of
from backend.job.job import Job
from backend.job.mapping import parse_job
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import ProblemsError, errors
from benchmarks.errors import Result
from benchmarks.shapes import NotModelled
from benchmarks.timed_run import Timed

GIB = 2.0**30


def is_own(row: Mapping[str, Any]) -> bool:
    """Return whether the row has the job that it was measured with."""
    return isinstance(row.get("job"), Mapping)


def job_of_row(row: Mapping[str, Any]) -> Job:
    """Return the job of a row. Raises NotModelled if its run did not finish, and ProblemsError."""
    if row.get("status", "done") != "done":
        raise NotModelled(f"run {row['status'].partition(':')[0]}")
    job, problems = parse_job(row["job"])
    if job is None:
        raise ProblemsError(errors(problems))
    return job


def own_result(row: Mapping[str, Any]) -> Result:
    """Return the reserved memory of a run beside its estimate."""
    job = job_of_row(row)
    figures, shape = estimate(job), resolve_model(job.model)
    adapted = job.training.method in ("lora", "qlora")
    holders = job.parallel.tensor * job.parallel.pipeline if job.traits.is_megatron else 1
    parameters = sum(stage.parameters for stage in figures.stages)
    return Result(
        source=str(row["source"]),
        case=str(row["case"]),
        measured=float(row["measured_mem_gb"]),
        ours=figures.reserved_gib,
        baseline=18 * parameters / holders / GIB,
        family="megatron" if job.traits.is_megatron else "hugging_face",
        kind=kind_of_run(vision=bool(shape.vision), experts=bool(shape.experts), adapters=adapted),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedJob(Timed):
    """A run of this machine, timed as its job is."""

    job: Job

    def seconds(self, efficiency: Efficiency, schedule: Schedule = iteration_time) -> float:
        """Return the estimated seconds at the level of a tuned stack; `schedule` is the product's."""
        shape, gpu = resolve_model(self.job.model), resolve_gpu(self.job.cluster)
        memory = estimate_memory(self.job, shape, gpu)
        time_context = replace(self.time_context, efficiency=efficiency)
        return float(step_of(self.job, time_context, self.layers, self.trained, memory.stages).iteration_s)


def own_timed(row: Mapping[str, Any]) -> TimedJob:
    """Return the step of a run. Raises NotModelled on a CPU, whose speed is not known."""
    job = job_of_row(row)
    shape, gpu = resolve_model(job.model), resolve_gpu(job.cluster)
    machine = machine_of_job(job, gpu)
    if machine is None:
        raise NotModelled("the speed of this machine is not known")
    memory = estimate_memory(job, shape, gpu)
    figures = estimate(job)
    parameters: tuple[RankParameters, ...] = tuple(stage.parameters for stage in memory.stages)
    group = " | ".join(str(row[key]) for key in ("source", "model", "gpus", "seq", "gbs", "precision"))
    return TimedJob(
        source=str(row["source"]),
        case=str(row["case"]),
        family="moe" if shape.experts else "dense",
        precision="bf16",
        group=group,
        baseline_group=f"{row['source']} | {row['precision']}",
        measured_s=float(row["measured_iter_s"]),
        tokens=job.step_tokens / job.world_size,
        flops=figures.flops_per_token,
        layers=memory.layers,
        time_context=time_context_of(job, shape, machine, memory.plan, memory.traits, memory.layers),
        trained=memory.trained,
        parameters=parameters,
        adapters=job.training.method in ("lora", "qlora"),
        layer_alone=False,
        flops_error=None,
        job=job,
    )
