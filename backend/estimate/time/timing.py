"""The time of a job: seconds of an iteration, speed, and hours for the data set."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from numpy import ndarray

from backend.estimate.array_ops import Number, plain
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.memo import Memo
from backend.estimate.memory.stage import Trained
from backend.estimate.memory.terms import StageMemory
from backend.estimate.model.layers import ModelLayers
from backend.estimate.model.lengths import attended_length, computed_length, masked_share, slowest_share
from backend.estimate.plan import Plan
from backend.estimate.time.adapter_run import adapters_of
from backend.estimate.time.calibrated import efficiency_on, is_timed, time_ratio
from backend.estimate.time.data_parallel import bucket_of
from backend.estimate.time.efficiency import Machine, machine_of_job
from backend.estimate.time.step_time import MicroBatch, StepTime, kind_passes, micro_batch_time, step_time
from backend.estimate.time.time_context import Execution, TimeContext
from backend.job.batch import total_steps
from backend.job.checkpointing import would_be_reentrant
from backend.job.job import Job
from backend.job.liger import kernels_of
from backend.job.memory_traits import MemoryTraits
from backend.job.model import ModelShape
from backend.job.presets import Gpu, calibration_figures, expected_errors, resolve_gpu

COMMUNICATION = ("tensor", "pipeline", "data", "context", "expert")


@frozen_dataclass
class Speed:
    """The time figures of an estimate."""

    iteration_s: float
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float
    hours: float | None
    communication_s: Mapping[str, float]
    time_s: Mapping[str, float]
    stage_times: tuple[tuple[float, float], ...]
    chunk_times: tuple[tuple[tuple[float, float], ...], ...]
    time_error: float
    """Median error of such times; if a run corrects them, that of corrected times."""
    bubble_fraction: float


def timed_machine(job: Job, gpu: Gpu) -> Machine | None:
    """Return the machine that computes a job's steps; None if their time cannot be estimated.

    The GPU's speed may be unknown. In GRPO nothing says how long the generation of completions takes.
    """
    return None if job.training.stage == "grpo" else machine_of_job(job, gpu)


def speed_of(
    job: Job,
    shape: ModelShape,
    gpu: Gpu,
    layers: ModelLayers,
    plan: Plan,
    memory: MemoryTraits,
    trained: Trained,
    memories: Sequence[StageMemory],
    flops_per_token: float,
) -> Speed | None:
    """Return the speed of a job; None if its time cannot be estimated. A calibrated cluster corrects every time."""
    machine = timed_machine(job, gpu)
    if machine is None:
        return None
    time_scale = time_ratio(job.cluster, machine)
    step = step_of(job, time_context_of(job, shape, machine, plan, memory, layers), layers, trained, memories)
    seconds = time_scale * float(step.iteration_s)
    step_tokens = round(plain(plan.micro_batch * plan.micro_batches * plan.data) * job.sequence_tokens)
    rate = step_tokens / seconds / job.world_size
    parts = {name: time_scale * float(value) for name, value in step.parts.items() if value}
    stage_times = _pairs(step.forward, step.backward, time_scale)
    return Speed(
        iteration_s=seconds,
        tokens_per_s_per_gpu=rate,
        model_tflops_per_gpu=rate * flops_per_token / 1e12,
        mfu=rate * flops_per_token / machine.peak,
        hours=hours_of(job, seconds),
        communication_s={name: time_scale * float(step.parts[name]) for name in COMMUNICATION},
        time_s=parts,
        stage_times=stage_times,
        chunk_times=_chunk_times(step, time_scale) if plan.virtual_pipeline > 1 else tuple([(s,) for s in stage_times]),
        time_error=_error(job),
        bubble_fraction=float(step.bubble),
    )


def _error(job: Job) -> float:
    """Return the median error of such times: on published runs if a run corrects them, else on independent sources."""
    return calibration_figures().typical_error if is_timed(job.cluster) else expected_errors().time.median


def time_context_of(
    job: Job, shape: ModelShape, machine: Machine, plan: Plan, memory: MemoryTraits, layers: ModelLayers
) -> TimeContext:
    """Return the inputs of a job's time formulas, with the mean length of a sequence, padding included."""
    length, attended = computed_length(job), attended_length(job)
    is_array = type(length) is ndarray or type(plan.sequence_length) is ndarray
    if is_array or length != plan.sequence_length or attended != plan.attended:
        plan = replace(plan, sequence_length=length, attended=attended)
    run = execution(job, shape, memory, layers)
    return TimeContext(plan=plan, machine=machine, efficiency=efficiency_on(job.cluster, machine), run=run)


def step_of(
    job: Job,
    time_context: TimeContext,
    layers: ModelLayers,
    trained: Trained,
    memories: Sequence[StageMemory],
    micro_batch: MicroBatch | None = None,
    memo: Memo | None = None,
) -> StepTime:
    """Return the time of a job's step. For arrays of plans, `micro_batch` and `memo` hold results that they share."""
    micro_batch = micro_batch or micro_batch_of(job, time_context, layers, trained)
    micro_batch = micro_batch.times(slowest_share(job, time_context.plan))
    parameters = [stage.parameters for stage in memories]
    return step_time(layers, time_context, trained, parameters, micro_batch=micro_batch, memo=memo)


def micro_batch_of(job: Job, time_context: TimeContext, layers: ModelLayers, trained: Trained) -> MicroBatch:
    """Return the seconds of a micro-batch, for any cut of the layers into stages."""
    method = job.training.method
    last_layers = job.training.trainable_layers if method == "partial" else None
    adapters = method in ("lora", "qlora")
    return micro_batch_time(
        layers, kind_passes(layers, time_context, trained, adapters=adapters, last_layers=last_layers)
    )


def execution(job: Job, shape: ModelShape, memory: MemoryTraits, layers: ModelLayers) -> Execution:
    """Return the way in which the job's engine runs a step."""
    parallel, training, traits = job.parallel, job.training, job.traits
    megatron = traits.is_megatron
    return Execution(
        fused=megatron,
        memory=memory,
        element_bytes=4.0 if training.precision == "fp32" else 2.0,
        rope_fused=parallel.rope_fusion,
        sums_apart=megatron and not memory.cached_weight_gradients,
        fetches_modules=traits.zero_stage == 3,
        sharding=_sharding(job),
        bucket=0.0 if megatron else bucket_of(memory, layers),
        # accelerate 1.11.0 utils/dataclasses.py set_mixed_precision: reduce_dtype.
        reduced_bytes=(4 if training.precision == "fp32" else 2) if traits.is_fsdp else None,
        reduces_once=traits.is_fsdp,
        keeps_gathered=traits.is_fsdp and not parallel.fsdp.reshard_after_forward,
        gathers_once=traits.is_fsdp and not parallel.fsdp.reshard_after_forward and parallel.fsdp.version == 1,
        liger=kernels_of(job, shape.model_type),
        stops_early=not megatron and not would_be_reentrant(job),
        megatron=megatron,
        overlap_gradients=parallel.overlap_grad_reduce if megatron else traits.overlaps,
        overlap_parameters=parallel.overlap_param_gather if megatron else traits.overlaps,
        overlap_sends=parallel.virtual_pipeline > 1,
        forward_passes=job.forward_passes,
        masked=masked_share(job),
        loops_over_experts=not megatron and loops_over_experts(resolve_gpu(job.cluster), training.precision),
        adapters=adapters_of(job, shape),
        unpacked=training.method == "qlora",
    )


def loops_over_experts(gpu: Gpu, precision: str) -> bool:
    """Return whether torch has no grouped product, but starts one product for each expert.

    It has one for bf16 on GPUs of compute capability 9 and 10 (torch 2.13 native/cuda/GroupedBlas.cpp _grouped_mm_cuda;
    the loop is in native/GroupedMMUtils.h _grouped_mm_fallback, https://github.com/pytorch/pytorch/issues/186620).
    """
    is_other = gpu.compute_capability is not None and int(gpu.compute_capability) not in (9, 10)
    return is_other or precision != "bf16"


def _sharding(job: Job) -> Literal["fsdp_1", "fsdp_2", "zero_3"] | None:
    if job.traits.is_fsdp and job.parallel.fsdp.version == 2:
        return "fsdp_2"
    if job.world_size == 1:
        return None
    return "fsdp_1" if job.traits.is_fsdp else "zero_3" if job.traits.zero_stage == 3 else None


def _pairs(forward: Sequence[Number], backward: Sequence[Number], scale: float) -> tuple[tuple[float, float], ...]:
    return tuple(
        [(scale * float(forward_s), scale * float(backward[place])) for place, forward_s in enumerate(forward)]
    )


def _chunk_times(step: StepTime, scale: float) -> tuple[tuple[tuple[float, float], ...], ...]:
    backward = step.chunk_backward
    return tuple([_pairs(chunks, backward[stage], scale) for stage, chunks in enumerate(step.chunk_forward)])


def hours_of(job: Job, seconds: float, global_batch: int | None = None) -> float | None:
    """Return the hours of the whole run; None if neither its steps nor its samples are known.

    `global_batch` replaces the job's own.
    """
    steps = total_steps(job, global_batch)
    return steps * seconds / 3600 if steps else None
