"""The cost of one plan: memory by stage and term, bubble, FLOPs, time. The entry point of this package."""

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from backend.estimate.array_ops import ZERO, Flag, Number, larger, largest
from backend.estimate.frozen_dataclass import frozen_dataclass, immutable_dataclass
from backend.estimate.interval import (
    is_memory_assumed,
    memory_interval,
    shortest_share,
    time_interval,
    unknown_for_memory,
    unknown_for_time,
)
from backend.estimate.memo import Memo
from backend.estimate.memory.engine_memory import check_modelled, memory_traits
from backend.estimate.memory.hugging_face import data_parallel_memory
from backend.estimate.memory.megatron import PlanCosts, pipeline_memory, plan_costs
from backend.estimate.memory.megatron_adapters import Adapters
from backend.estimate.memory.megatron_layer import Run
from backend.estimate.memory.non_torch_memory import non_torch_gib
from backend.estimate.memory.reserved import reserved_bytes
from backend.estimate.memory.rollout import rollout_of
from backend.estimate.memory.stage import Trained, trained_parts
from backend.estimate.memory.terms import StageMemory
from backend.estimate.memory.tuning import Tuning
from backend.estimate.model.adapters import CopiedPart, copied_parts
from backend.estimate.model.layers import ModelLayers
from backend.estimate.model.lengths import masked_share
from backend.estimate.model.model_layers import model_layers
from backend.estimate.model.work import flops_of_last_layers, flops_per_token, pipeline_work
from backend.estimate.plan import Plan, plan_of_model, unsplit
from backend.estimate.time.calibrated import calibrated_on, probed_on, reserved_ratio
from backend.estimate.time.schedule import bubble_fraction, textbook_bubble
from backend.estimate.time.timing import Speed, speed_of
from backend.job.attention import attention_kind, masks_packs
from backend.job.job import Job
from backend.job.liger import kernels_of
from backend.job.memory_traits import MemoryTraits
from backend.job.model import ModelShape
from backend.job.mtp import counted_layers
from backend.job.presets import Gpu, expected_errors, resolve_gpu, resolve_model
from backend.job.rules.adapters import adapted_modules
from backend.job.trained import ignores_freezing

GIB = 2.0**30


@frozen_dataclass
class StageEstimate:
    """One pipeline stage; every figure is per GPU, experts included. The terms add up to peak_gib."""

    stage: int
    layers: int
    parameters: int
    """All parameters on the GPU, experts included."""
    expert_parameters: int
    trainable_parameters: int
    weights_gib: float
    gradients_gib: float
    """Gradients with their communication buckets."""
    optimizer_gib: float
    activations_gib: float
    logits_gib: float
    workspace_gib: float
    """Gradients in transfer, cached buffers, workspaces of libraries."""
    peak_gib: float


@immutable_dataclass
class Estimate:
    """The cost of one plan. Figures of time are None where the GPU's speed is not known."""

    name: str
    fits: bool
    """reserved_gib + outside_gib <= gpu_memory_gib; and host_memory_gib <= a node's RAM if that is known."""
    gpu_memory_gib: float
    outside_gib: float
    peak_gib: float
    """Allocator peak on the worst rank."""
    reserved_gib: float
    peak_stage: int
    stages: tuple[StageEstimate, ...]
    host_memory_gib: float
    """RAM of a node for offloaded data."""
    data_parallel: int
    global_batch_size: int
    micro_batches: int
    """Gradient accumulation steps."""
    bubble_fraction: float
    bubble_textbook: float
    flops_per_token: float
    iteration_s: float | None = None
    """Seconds of one optimizer step."""
    tokens_per_s_per_gpu: float | None = None
    model_tflops_per_gpu: float | None = None
    mfu: float | None = None
    """Model FLOPs over the GPU's dense peak, without recomputation."""
    hours: float | None = None
    """Hours of the whole run; None also if the number of samples is unknown."""
    communication_s: Mapping[str, float] | None = None
    """Exposed seconds of an iteration: tensor, pipeline, data, context, expert."""
    time_s: Mapping[str, float] | None = None
    """Parts of iteration_s: compute, recompute, bubble, those of communication_s, optimizer, offload."""
    stage_times: tuple[tuple[float, float], ...] | None = None
    """Forward and backward seconds of one micro-batch on each stage, communication included."""
    chunk_times: tuple[tuple[tuple[float, float], ...], ...] | None = None
    """The same for each model chunk of each stage."""
    time_error: float | None = None
    """Median error of such times, as a fraction. It is the error on sources that were not used to build the estimates
    (presets/expected_error.yaml). If a run corrects the times, it is the error of times that were corrected in this way
    on published runs."""
    need_gib_low: float | None = None
    """The 80 % interval of reserved_gib + outside_gib; `need_gib_high` is its upper end. Of measured runs, 80 % lie
    inside (presets/intervals.yaml). The same for the other `_low` and `_high`. None if the need is assumed."""
    need_gib_high: float | None = None
    iteration_s_low: float | None = None
    iteration_s_high: float | None = None
    tokens_per_s_per_gpu_low: float | None = None
    tokens_per_s_per_gpu_high: float | None = None
    hours_low: float | None = None
    hours_high: float | None = None
    fit: str | None = None
    """fits: the whole interval is below gpu_memory_gib. close: the interval holds it. too_large: the whole interval is
    above it, or the host memory does not suffice."""
    memory_error: float | None = None
    """Median error of such memory; None if a run corrects it, because nobody has measured that error, and for an
    assumed need."""
    memory_assumed: bool = False
    """Whether no measured run confirms the need. Then `fit` asks for the margin that other training needs."""
    memory_unknown: tuple[str, ...] = ()
    """What is not known of the job and makes the interval of the need wider: lengths (of the samples)."""
    time_unknown: tuple[str, ...] = ()
    """The same for the times: lengths, stack (the software of the nodes)."""
    calibrated_on: str | None = None
    """The run whose measured step time or memory corrects these figures."""
    probed_on: str | None = None
    """The day on which the speeds in these figures were measured on the cluster."""


@frozen_dataclass
class MemoryEstimate:
    """The memory of every stage of a job in bytes, and the inputs of its formulas."""

    layers: ModelLayers
    plan: Plan
    traits: MemoryTraits
    trained: Trained
    stages: list[StageMemory]


def estimate(job: Job) -> Estimate:
    """Return the estimate of a legal job, in which rules.check finds no error.

    Raises ProblemsError: what resolve_gpu and resolve_model raise, and the warning estimate_not_modelled for engines
    and combinations without a model. It never returns a figure that is silently wrong.
    """
    return estimate_resolved(job, resolve_model(job.model), resolve_gpu(job.cluster))


def estimate_resolved(job: Job, shape: ModelShape, gpu: Gpu, memory: MemoryEstimate | None = None) -> Estimate:
    """Return the estimate of a job whose model and GPU are known; `memory` is the result of `estimate_memory`."""
    memory = memory or estimate_memory(job, shape, gpu)
    plan, layers, trained = memory.plan, memory.layers, memory.trained
    flops = _flops(job, layers, plan, trained)
    speed = speed_of(job, shape, gpu, layers, plan, memory.traits, trained, memory.stages, flops)
    stages = tuple([_stage(stage) for stage in memory.stages])
    worst = max(stages, key=attrgetter("peak_gib"))
    reserved_gib = float(reserved_of(job, shape, memory)) / GIB
    outside, host_gib = float(non_torch_gib(job, plan)), float(host_memory_gib(job, memory.stages))
    need, is_assumed = reserved_gib + outside, is_memory_assumed(job)
    factors = memory_interval(job)
    low, high = factors.low * need, factors.high * need
    # A margin says how much memory stays free, so that the interval does not decide.
    bounds = (need, need) if job.cluster.memory_margin else (low, high)
    return Estimate(
        name=job.name,
        fits=bool(is_held(job, gpu, need, host_gib)),
        gpu_memory_gib=gpu.memory_gib,
        outside_gib=outside,
        peak_gib=worst.peak_gib,
        reserved_gib=reserved_gib,
        peak_stage=worst.stage,
        stages=stages,
        host_memory_gib=host_gib,
        data_parallel=int(plan.data),
        global_batch_size=int(job.training.micro_batch_size * plan.micro_batches * plan.data),
        micro_batches=int(plan.micro_batches),
        bubble_fraction=speed.bubble_fraction if speed else float(bubble_of_work(job, memory)),
        bubble_textbook=float(textbook_bubble(plan.pipeline, plan.virtual_pipeline, plan.micro_batches)),
        flops_per_token=flops,
        **(_times(job, speed) if speed else {}),
        need_gib_low=None if is_assumed else low,
        need_gib_high=None if is_assumed else high,
        fit=fit_of(job, gpu, *bounds, host_gib),
        memory_error=None if is_assumed or reserved_ratio(job) else expected_errors().memory.median,
        memory_assumed=is_assumed,
        memory_unknown=unknown_for_memory(job),
        time_unknown=unknown_for_time(job) if speed else (),
        calibrated_on=calibrated_on(job),
        probed_on=probed_on(job.cluster) if speed else None,
    )


def fit_of(job: Job, gpu: Gpu, low: float, high: float, host_gib: float) -> str:
    """Return how a plan fits whose need is between these bounds."""
    if not is_held(job, gpu, low, host_gib):
        return "too_large"
    return "fits" if is_held(job, gpu, high, host_gib) else "close"


def _times(job: Job, speed: Speed) -> dict[str, Any]:
    """Return the fields of Estimate that need the GPU's speed, with their intervals."""
    full = time_interval(job)
    # The run may have short samples if the lengths are not known.
    low = full.low * shortest_share(job)
    return {
        "iteration_s": speed.iteration_s,
        "iteration_s_low": (full.low if job.training.packing else low) * speed.iteration_s,
        "iteration_s_high": full.high * speed.iteration_s,
        "tokens_per_s_per_gpu": speed.tokens_per_s_per_gpu,
        "tokens_per_s_per_gpu_low": speed.tokens_per_s_per_gpu / full.high,
        "tokens_per_s_per_gpu_high": speed.tokens_per_s_per_gpu / full.low,
        "hours": speed.hours,
        "hours_low": None if speed.hours is None else low * speed.hours,
        "hours_high": None if speed.hours is None else full.high * speed.hours,
        "model_tflops_per_gpu": speed.model_tflops_per_gpu,
        "mfu": speed.mfu,
        "communication_s": speed.communication_s,
        "time_s": speed.time_s,
        "stage_times": speed.stage_times,
        "chunk_times": speed.chunk_times,
        "time_error": speed.time_error,
    }


def estimate_memory(
    job: Job,
    shape: ModelShape,
    gpu: Gpu,
    plan: Plan | None = None,
    costs: PlanCosts | None = None,
    memo: Memo | None = None,
) -> MemoryEstimate:
    """Return the memory of a job; raise what `estimate` raises.

    `plan` replaces the job's own plan where it holds arrays of plans. `costs` are the costs of their layers, and
    `shared` holds the results that these plans share.
    """
    check_modelled(job, shape)
    traits = memory_traits(job, shape, gpu)
    layers, trained = layers_of_job(job, shape), trained_parts(job, shape)
    plan = plan or plan_of_model(job, shape, attention=attention_kind(job, shape, gpu))
    if job.traits.is_megatron:
        run = run_of(job, trained)
        costs = costs or plan_costs(layers, plan, traits, run)
        stages = pipeline_memory(layers, plan, traits, run, costs, memo)
    else:
        stages = [data_parallel_memory(layers, plan, traits, tuning_of(job, shape, trained, gpu))]
    return MemoryEstimate(layers=layers, plan=plan, traits=traits, trained=trained, stages=stages)


def reserved_of(job: Job, shape: ModelShape, memory: MemoryEstimate) -> Number:
    """Return the bytes that torch reserves on the stage that needs most: by the ratio of a run of the user, if there is
    one."""
    ratio = reserved_ratio(job)
    if ratio:
        return ratio * largest(*[stage.peak for stage in memory.stages])
    logits = memory.traits.logits_backward_bytes if _leaves_gap(job, shape) else 0
    most = ZERO
    for stage in memory.stages:
        most = larger(most, reserved_bytes(stage, logits))
    return most


def _leaves_gap(job: Job, shape: ModelShape) -> bool:
    """Return whether the loss is Hugging Face's, on 16-bit logits."""
    training = job.training
    stores_logits = training.stage in ("pt", "sft") and training.precision != "fp32"
    return stores_logits and not job.traits.is_megatron and not kernels_of(job, shape.model_type).loss


def layers_of_job(job: Job, shape: ModelShape) -> ModelLayers:
    """Return the layers that the job's engine builds.

    ms-swift 4.6.0 runs a tower that is frozen whole without gradients (model/patcher.py patch_frozen_module), so its
    patches need none. Some towers contain the projector.
    """
    layers = model_layers(shape, job.traits.is_megatron, counted_layers(job, shape))
    if layers.vision is None or not layers.vision.patches_need or job.traits.environment != "swift":
        return layers
    if trained_parts(job, shape).vision:
        return layers
    return replace(layers, vision=replace(layers.vision, patches_need=False))


def _is_adapted(job: Job) -> bool:
    return job.training.method in ("lora", "qlora")


def run_of(job: Job, trained: Trained) -> Run:
    """Return what a Megatron job trains, and whether a reference model is beside it."""
    lora = Adapters(rank=job.training.lora.rank, targets=job.training.lora.targets) if _is_adapted(job) else None
    return Run(trained=trained, adapters=lora, reference=job.has_reference and lora is None)


def tuning_of(job: Job, shape: ModelShape, trained: Trained, gpu: Gpu) -> Tuning:
    """Return what a job on a Hugging Face engine trains, and how."""
    training, kernels = job.training, kernels_of(job, shape.model_type)
    return Tuning(
        trained=trained,
        method=training.method,
        lora_rank=training.lora.rank,
        lora_targets=adapted_modules(job, shape),
        adapts_by_path=job.traits.environment == "swift" or ignores_freezing(job, shape.model_type),
        drops=job.lora_dropout > 0,
        copied=_copied(job),
        last_layers=training.trainable_layers,
        liger=kernels.loss,
        fused_norms=kernels.norms,
        fused_head_norms=kernels.head_norms,
        fused_functions=kernels.functions,
        single_precision=training.precision == "fp32",
        masks_packs=masks_packs(job),
        masks_padding=masked_share(job) > 0,
        pairs=training.stage in ("dpo", "kto"),
        reference=job.has_reference,
        rollout=rollout_of(job, gpu),
    )


def _copied(job: Job) -> frozenset[CopiedPart]:
    """Return what is trained whole beside adapters: the modules that the job names, or the embedding and the output
    layer if the vocabulary is resized (LLaMA-Factory 0.9.5 model/adapter.py _setup_lora_tuning)."""
    names = job.extra.get("additional_target")
    if names is None and job.extra.get("resize_vocab"):
        names = "embed_tokens,lm_head"
    if not names:
        return frozenset()
    return copied_parts(",".join(map(str, names)) if isinstance(names, list | tuple) else str(names or ""))


def host_memory_gib(job: Job, stages: list[StageMemory]) -> Number:
    """Return the GiB of a node's RAM for offloaded data. Data on NVMe needs buffers only, which are not counted."""
    if job.parallel.offload_device == "nvme" and job.traits.zero_stage == 3:
        return 0.0
    most = ZERO
    for stage in stages:
        most = larger(most, stage.host)
    return job.cluster.gpus_per_node * most / GIB


def is_held(job: Job, gpu: Gpu, needed_gib: Number, host_gib: Number) -> Flag:
    """Return whether the GPU has the memory that a plan needs, and the node the RAM that its offloading needs.

    The RAM counts only if the cluster states it.
    """
    fits, memory_gib = needed_gib <= gpu.memory_gib, job.cluster.host_memory_gib
    return fits if memory_gib is None else fits & (host_gib <= memory_gib)


def _stage(memory: StageMemory) -> StageEstimate:
    parameters = memory.parameters
    return StageEstimate(
        stage=memory.stage,
        layers=memory.layers,
        parameters=int(parameters.dense + parameters.expert),
        expert_parameters=int(parameters.expert),
        trainable_parameters=int(parameters.trained_dense + parameters.trained_expert),
        weights_gib=float(memory.weights) / GIB,
        gradients_gib=float(memory.gradients) / GIB,
        optimizer_gib=float(memory.optimizer) / GIB,
        activations_gib=float(memory.activations) / GIB,
        logits_gib=float(memory.logits) / GIB,
        workspace_gib=float(memory.workspace) / GIB,
        peak_gib=float(memory.peak) / GIB,
    )


def bubble_of_work(job: Job, memory: MemoryEstimate) -> Number:
    """Return the bubble fraction from the FLOPs of the stages, for GPUs of unknown speed."""
    plan = memory.plan
    if not job.traits.is_megatron or plan.pipeline == 1:
        return 0.0
    works = pipeline_work(memory.layers, plan, memory.trained, adapters=_is_adapted(job))
    forward = [work.forward for work in works]
    backward = [work.backward + work.recomputed for work in works]
    return bubble_fraction(forward, backward, plan.virtual_pipeline, plan.micro_batches)


def _flops(job: Job, layers: ModelLayers, plan: Plan, trained: Trained) -> float:
    """Return the FLOPs of one token of a mean sequence."""
    method, length = job.training.method, job.sequence_tokens
    if method == "partial":
        alone = replace(unsplit(plan), sequence_length=length)
        return flops_of_last_layers(layers, alone, job.training.trainable_layers)
    return flops_per_token(layers, plan, trained, method in ("lora", "qlora"), length)
