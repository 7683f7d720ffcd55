"""What one plan costs: memory by stage and term, the pipeline's bubble, FLOPs. The entry point of this package."""

from dataclasses import dataclass

from backend.estimate.hugging_face import Tuning, data_parallel_memory
from backend.estimate.layers import ModelLayers, model_layers
from backend.estimate.megatron import pipeline_memory
from backend.estimate.plan import Plan, in_precision, plan_of, unsplit
from backend.estimate.schedule import bubble_fraction, textbook_bubble
from backend.estimate.stage import Trained, trained_parts
from backend.estimate.terms import StageMemory
from backend.estimate.work import Work, flops_of_last_layers, flops_per_token, pipeline_work
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu, resolve_gpu, resolve_model
from backend.job.problems import Problem, ProblemsError
from backend.job.traits import MemoryTraits

GIB = 2.0**30

RESERVED_PER_ALLOCATED = 1.06
"""torch's allocator reserves more than it hands out. Over the 19 distinct layouts of SimuMax's B200 runs
(https://github.com/MooreThreads/SimuMax, docs/b200/b200_release_v1.2_summary.json) the ratio is 1.03 to 1.09, its mean
1.05; SimuMax itself plans with 1 / 0.94."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageEstimate:
    """One pipeline stage; every figure is per GPU, experts included. The terms add up to peak_gib."""

    stage: int
    layers: int
    parameters: int
    """All on the GPU, experts included."""
    expert_parameters: int
    trainable_parameters: int
    weights_gib: float
    gradients_gib: float
    """Communication buckets included."""
    optimizer_gib: float
    activations_gib: float
    logits_gib: float
    workspace_gib: float
    """Gradients on their way, cached buffers, workspaces of libraries."""
    peak_gib: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """The cost of one plan. Figures of time are None: not modelled yet."""

    name: str
    fits: bool
    """reserved_gib + outside_gib <= gpu_memory_gib."""
    gpu_memory_gib: float
    outside_gib: float
    peak_gib: float
    """Allocator peak on the worst rank."""
    reserved_gib: float
    peak_stage: int
    stages: tuple[StageEstimate, ...]
    host_memory_gib: float
    """On a node, for what is offloaded."""
    data_parallel: int
    global_batch_size: int
    micro_batches: int
    """Gradient accumulation steps."""
    bubble_fraction: float
    bubble_textbook: float
    flops_per_token: float
    iteration_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    model_tflops_per_gpu: float | None = None
    mfu: float | None = None
    hours: float | None = None
    communication_s: None = None


def estimate(job: Job) -> Estimate:
    """The estimate of a legal job (rules.check finds no error in it).

    Raises ProblemsError: what resolve_gpu and resolve_model raise, and estimate_not_modelled (a warning) for engines
    and combinations without a model; never a figure that is silently wrong.
    """
    return estimate_resolved(job, resolve_model(job.model), resolve_gpu(job.cluster))


def estimate_resolved(job: Job, shape: ModelShape, gpu: Gpu) -> Estimate:
    """`estimate` for a model and a GPU that are at hand."""
    memory = _memory_traits(job, shape)
    layers, trained = model_layers(shape), trained_parts(job, shape)
    plan = plan_of(job, shape.vision, flash_attention=gpu.supports_bf16)
    if job.traits.is_megatron:
        memories = pipeline_memory(layers, plan, memory, trained)
        works = pipeline_work(layers, plan, trained) if plan.pipeline > 1 else []
    else:
        memories = [data_parallel_memory(layers, plan, memory, _tuning(job, trained))]
        works = []
    worst = max(memories, key=lambda item: float(item.peak))
    peak_gib = float(worst.peak) / GIB
    return Estimate(
        name=job.name,
        fits=peak_gib * RESERVED_PER_ALLOCATED + job.cluster.outside_gib <= gpu.memory_gib,
        gpu_memory_gib=gpu.memory_gib,
        outside_gib=job.cluster.outside_gib,
        peak_gib=peak_gib,
        reserved_gib=peak_gib * RESERVED_PER_ALLOCATED,
        peak_stage=worst.stage,
        stages=tuple(_stage(item) for item in memories),
        host_memory_gib=_host_bytes(memory, plan, memories, job.cluster.gpus_per_node) / GIB,
        data_parallel=job.data_parallel,
        global_batch_size=job.global_batch,
        micro_batches=plan.micro_batches,
        bubble_fraction=_bubble(plan, works),
        bubble_textbook=textbook_bubble(plan.pipeline, plan.virtual_pipeline, plan.micro_batches),
        flops_per_token=_flops(job, layers, plan, trained),
    )


def _memory_traits(job: Job, shape: ModelShape) -> MemoryTraits:
    """The engine's memory facts in the job's precision; raises estimate_not_modelled."""
    training, traits = job.training, job.traits
    if traits.memory is None:
        raise _not_modelled("engine", job.engine)
    if training.method not in traits.methods:
        raise _not_modelled("training.method", f"{training.method}, {job.engine}")
    if training.stage == "dpo":
        raise _not_modelled("training.stage", "DPO")
    if training.precision == "fp32" and traits.is_megatron:
        raise _not_modelled("training.precision", "fp32, Megatron")
    if training.method == "partial" and shape.vision:
        raise _not_modelled("training.method", "partial, vision")
    return in_precision(traits.memory, training.precision, megatron=traits.is_megatron)


def _not_modelled(field: str, what: str) -> ProblemsError:
    problem = Problem(code="estimate_not_modelled", field=field, severity="warning", values={"what": what})
    return ProblemsError([problem])


def _tuning(job: Job, trained: Trained) -> Tuning:
    training = job.training
    return Tuning(
        trained=trained,
        method=training.method,
        lora_rank=training.lora.rank,
        lora_targets=training.lora.targets,
        last_layers=training.trainable_layers,
        liger=training.liger,
        single_precision=training.precision == "fp32",
    )


def _stage(memory: StageMemory) -> StageEstimate:
    parameters = memory.parameters
    return StageEstimate(
        stage=memory.stage,
        layers=memory.layers,
        parameters=parameters.dense + parameters.expert,
        expert_parameters=parameters.expert,
        trainable_parameters=parameters.trained_dense + parameters.trained_expert,
        weights_gib=memory.weights / GIB,
        gradients_gib=memory.gradients / GIB,
        optimizer_gib=memory.optimizer / GIB,
        activations_gib=memory.activations / GIB,
        logits_gib=memory.logits / GIB,
        workspace_gib=memory.workspace / GIB,
        peak_gib=float(memory.peak) / GIB,
    )


def _host_bytes(memory: MemoryTraits, plan: Plan, stages: list[StageMemory], gpus_per_node: int) -> float:
    """Optimizer states offloaded by all GPUs of a node, and their fp32 gradients, pinned."""
    if not plan.offload_fraction:
        return 0.0
    each = memory.optimizer_bytes + 4
    shards = max(
        item.parameters.trained_dense / plan.optimizer_shards
        + item.parameters.trained_expert / plan.expert_optimizer_shards
        for item in stages
    )
    return float(each * shards * plan.offload_fraction * gpus_per_node)


def _bubble(plan: Plan, works: list[Work]) -> float:
    """Of the compute part, from FLOPs; stages run equally fast."""
    if not works:
        return 0.0
    forward = [work.forward for work in works]
    backward = [work.backward + work.recomputed for work in works]
    return float(bubble_fraction(forward, backward, plan.virtual_pipeline, plan.micro_batches))


def _flops(job: Job, layers: ModelLayers, plan: Plan, trained: Trained) -> float:
    method = job.training.method
    if method == "partial":
        return float(flops_of_last_layers(layers, unsplit(plan), job.training.trainable_layers))
    return float(flops_per_token(layers, unsplit(plan), trained, method in ("lora", "qlora")))
