"""Every rule of which values go together: one function each, saying why a job or a plan is out.

A rule takes (job, model shape, GPU) and returns a Problem or None. `check` runs those that bind the job's engine.
What a single value may be (type, range, choices) is checked where the file is read: mapping.py.
Where a rule comes from an engine's own check, the engine's check stands beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu, resolve_gpu, resolve_model
from backend.job.problems import Problem, ProblemsError, Severity
from backend.job.traits import EngineTraits

Rule = Callable[[Job, ModelShape, Gpu], Problem | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundRule:
    """A rule and which engines it binds."""

    function: Rule
    binds: Callable[[EngineTraits], bool]
    plan: bool
    """Whether it depends on the plan (parallel sizes, micro-batch, accumulation), so that enumeration must ask it."""


RULES: list[BoundRule] = []


def _rule(binds: Callable[[EngineTraits], bool], *, plan: bool = False) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.append(BoundRule(function=function, binds=binds, plan=plan))
        return function

    return register


def everywhere(traits: EngineTraits) -> bool:
    """Binds every engine."""
    return True


def megatron(traits: EngineTraits) -> bool:
    """Binds the engines that train with Megatron-Core."""
    return traits.is_megatron


def hugging_face(traits: EngineTraits) -> bool:
    """Binds the engines that train the Hugging Face model class."""
    return not traits.is_megatron


def check(job: Job) -> list[Problem]:
    """All that is wrong with the job as a plan, in the order of the rules; what cannot be resolved comes alone."""
    try:
        gpu, shape = resolve_gpu(job.cluster), resolve_model(job.model)
    except ProblemsError as error:
        return list(error.problems)
    return check_resolved(job, shape, gpu)


def check_resolved(job: Job, shape: ModelShape, gpu: Gpu, *, plan_only: bool = False) -> list[Problem]:
    """`check` for a model and a GPU that are at hand; `plan_only` asks just the rules that a plan can change."""
    found = (
        bound.function(job, shape, gpu) for bound in RULES if bound.binds(job.traits) and (bound.plan or not plan_only)
    )
    return [problem for problem in found if problem is not None]


def _problem(code: str, field: str, severity: Severity = "error", *, edit: dict[str, object] | None = None,
             **values: object) -> Problem:  # fmt: skip
    return Problem(code=code, field=field, severity=severity, values=values, edit=edit or {})


@_rule(everywhere)
def stage_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Under USE_MCA=1, stages other than pt, sft, dpo silently fall through to the Hugging Face path."""
    stages = job.traits.stages
    if job.training.stage in stages:
        return None
    return _problem("stage_not_supported", "training.stage", engine=job.engine, stages=", ".join(stages))


@_rule(everywhere)
def method_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter never reads finetuning_type: LoRA there would silently train everything."""
    methods = job.traits.methods
    if job.training.method in methods:
        return None
    return _problem("method_not_supported", "training.method", engine=job.engine, method=job.training.method,
                    methods=", ".join(methods), edit={"training.method": methods[0]})  # fmt: skip


@_rule(everywhere)
def model_type_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory refuses model types that are not in its MCA_SUPPORTED_MODELS."""
    allowed = job.traits.model_types
    if allowed is None or not shape.model_type or shape.model_type in allowed:
        return None
    return _problem("model_type_not_supported", "model", engine=job.engine, model_type=shape.model_type)


@_rule(everywhere)
def precision_runs_on_gpu(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """bf16 needs Ampere or later; on a CPU the Hugging Face path trains in fp32."""
    if gpu.device == "cpu" and not job.traits.is_megatron and job.training.precision != "fp32":
        return _problem("precision_on_cpu", "training.precision", edit={"training.precision": "fp32"})
    if job.training.precision == "bf16" and not gpu.supports_bf16:
        return _problem("no_bf16", "training.precision", gpu=gpu.name, edit={"training.precision": "fp16"})
    return None


@_rule(everywhere)
def trainable_layers_exist(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """`partial` trains the last layers, so there must be that many."""
    layers = job.training.trainable_layers
    if job.training.method != "partial" or layers <= shape.layers:
        return None
    return _problem("too_many_trainable_layers", "training.trainable_layers", layers=layers, limit=shape.layers,
                    edit={"training.trainable_layers": shape.layers})  # fmt: skip


@_rule(everywhere)
def something_is_trained(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """A vision-language model with all three parts frozen has no gradient."""
    freeze = job.training.freeze
    frozen = freeze.vision_tower and freeze.projector and freeze.language_model
    if not shape.vision or not frozen or job.training.method in ("lora", "qlora"):
        return None
    return _problem("nothing_trained", "training.freeze.language_model", edit={"training.freeze.language_model": False})


@_rule(everywhere)
def freeze_has_effect(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """The freeze switches name parts that text models do not have."""
    freeze = job.training.freeze
    if shape.vision or not (freeze.vision_tower or freeze.projector or freeze.language_model):
        return None
    return _problem("freeze_without_vision", "training.freeze", "warning")


@_rule(everywhere)
def timeout_is_sane(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """LLaMA-Factory's examples set 5.7 years: a hung collective then never ends."""
    if job.training.ddp_timeout_s <= 86_400:
        return None
    return _problem("timeout_too_long", "training.ddp_timeout_s", "warning", hours=job.training.ddp_timeout_s // 3600,
                    edit={"training.ddp_timeout_s": 1800})  # fmt: skip


@_rule(everywhere, plan=True)
def ranks_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: `world_size (N) is not divisible by M`."""
    if job.world_size % job.model_parallel == 0:
        return None
    return _problem("ranks_not_divisible", "parallel.tensor", ranks=job.world_size, product=job.model_parallel)


@_rule(everywhere, plan=True)
def global_batch_divides(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Every replica takes whole micro-batches."""
    wanted = job.training.global_batch_size
    unit = job.training.micro_batch_size * job.data_parallel
    if wanted is None or unit == 0 or (wanted % unit == 0 and wanted >= unit):
        return None
    nearest = max(1, round(wanted / unit)) * unit
    return _problem("global_batch_not_divisible", "training.global_batch_size", wanted=wanted, unit=unit,
                    nearest=nearest, edit={"training.global_batch_size": nearest})  # fmt: skip


@_rule(hugging_face)
def parallel_sizes_are_megatrons(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Hugging Face engines have data parallelism only; TP, PP, CP, EP would be dropped in silence."""
    parallel = job.parallel
    sizes = {"tensor": parallel.tensor, "pipeline": parallel.pipeline, "context": parallel.context,
             "expert": parallel.expert, "virtual_pipeline": parallel.virtual_pipeline}  # fmt: skip
    set_sizes = {f"parallel.{name}": 1 for name, size in sizes.items() if size > 1}
    if not set_sizes:
        return None
    return _problem("parallel_ignored", next(iter(set_sizes)), "warning", engine=job.engine, edit=dict(set_sizes))


@_rule(hugging_face)
def recompute_is_all_or_nothing(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Hugging Face engines know gradient checkpointing on or off."""
    if job.parallel.recompute != "selective":
        return None
    return _problem("selective_is_megatrons", "parallel.recompute", "warning", edit={"parallel.recompute": "full"})


@_rule(megatron, plan=True)
def heads_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_attention_heads must be a multiple of TP."""
    if shape.heads % job.parallel.tensor == 0:
        return None
    return _problem("heads_not_divisible", "parallel.tensor", heads=shape.heads, tensor=job.parallel.tensor)


@_rule(megatron, plan=True)
def groups_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_query_groups must be a multiple or divisor of TP."""
    groups, tensor = shape.kv_heads, job.parallel.tensor
    if groups % tensor == 0 or tensor % groups == 0:
        return None
    return _problem("groups_not_divisible", "parallel.tensor", groups=groups, tensor=tensor)


@_rule(megatron, plan=True)
def widths_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Column-parallel layers are cut into TP equal parts: the FFN, and the vocabulary as mcore_adapter builds it."""
    tensor = job.parallel.tensor
    for name, width in (("intermediate_size", shape.ffn), ("vocab_size", shape.vocab)):
        if width % tensor:
            return _problem("width_not_divisible", "parallel.tensor", name=name, width=width, tensor=tensor)
    return None


@_rule(megatron, plan=True)
def tensor_stays_in_node(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """TP communicates in every layer; across nodes it waits for the network."""
    per_node, tensor = job.cluster.gpus_per_node, job.parallel.tensor
    if per_node % tensor == 0:
        return None
    return _problem("tensor_across_nodes", "parallel.tensor", "warning", tensor=tensor, per_node=per_node)


@_rule(megatron, plan=True)
def layers_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: layers (plus the embedding and loss accounts) must be a multiple of PP x VPP."""
    parallel = job.parallel
    counted = shape.layers + parallel.account_for_embedding + parallel.account_for_loss
    chunks = parallel.pipeline * parallel.virtual_pipeline
    if counted % chunks == 0:
        return None
    return _problem("layers_not_divisible", "parallel.pipeline", layers=counted, chunks=chunks)


@_rule(megatron, plan=True)
def interleaving_needs_stages(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: the interleaved schedule needs PP > 1."""
    if job.parallel.virtual_pipeline == 1 or job.parallel.pipeline > 1:
        return None
    return _problem("virtual_without_pipeline", "parallel.virtual_pipeline", edit={"parallel.virtual_pipeline": 1})


@_rule(megatron, plan=True)
def interleaving_needs_micro_batches(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core schedules.py: with VPP at least PP micro-batches, and no remainder smaller than PP."""
    parallel, micro_batches = job.parallel, job.accumulation
    if parallel.virtual_pipeline == 1 or parallel.pipeline == 1:
        return None
    if micro_batches >= parallel.pipeline and micro_batches % parallel.pipeline == 0:
        return None
    return _problem("too_few_micro_batches", "training.gradient_accumulation_steps", micro_batches=micro_batches,
                    pipeline=parallel.pipeline)  # fmt: skip


@_rule(megatron, plan=True)
def experts_exist(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_moe_experts must be set to use expert parallel."""
    if job.parallel.expert == 1 or shape.experts:
        return None
    return _problem("expert_parallel_without_experts", "parallel.expert", edit={"parallel.expert": 1})


@_rule(megatron, plan=True)
def experts_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Every expert-parallel rank holds the same number of whole experts."""
    if not shape.experts or shape.experts % job.parallel.expert == 0:
        return None
    return _problem("experts_not_divisible", "parallel.expert", experts=shape.experts, expert=job.parallel.expert)


@_rule(megatron, plan=True)
def expert_ranks_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: world_size must be a multiple of ETP x EP x PP."""
    parallel = job.parallel
    product = parallel.expert_tensor * parallel.expert * parallel.pipeline
    if not shape.experts or job.world_size % product == 0:
        return None
    return _problem("expert_ranks_not_divisible", "parallel.expert", ranks=job.world_size, product=product)


@_rule(megatron, plan=True)
def expert_width_divides(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ETP cuts every expert's FFN into equal parts."""
    if not shape.experts or shape.expert_ffn % job.parallel.expert_tensor == 0:
        return None
    return _problem("width_not_divisible", "parallel.expert_tensor", name="moe_intermediate_size",
                    width=shape.expert_ffn, tensor=job.parallel.expert_tensor)  # fmt: skip


@_rule(megatron, plan=True)
def sequence_divides(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """CP cuts a sequence into 2 x CP chunks; SFT pads to 64 tokens, PT to 8 (mcore_adapter's collators)."""
    padding = 8 if job.training.stage == "pt" else 64
    chunks = 2 * job.parallel.context
    if job.parallel.context == 1 or padding % chunks == 0:
        return None
    return _problem("sequence_not_divisible", "parallel.context", chunks=chunks, padding=padding)


@_rule(megatron, plan=True)
def packing_without_context(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter asserts that every packed sub-sequence is aligned to 2 x CP; LLaMA-Factory does not align them."""
    if not job.training.packing or job.parallel.context == 1:
        return None
    return _problem("packing_with_context", "training.packing", edit={"training.packing": False})


@_rule(megatron, plan=True)
def deep_stack_fits_first_stage(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Qwen3-VL feeds deep-stack features to the first layers, which must all be on the first stage (chunk)."""
    deep = shape.vision.deep_stack if shape.vision else 0
    parallel = job.parallel
    chunks = parallel.pipeline * parallel.virtual_pipeline
    counted = shape.layers + parallel.account_for_embedding + parallel.account_for_loss
    first = counted // chunks - parallel.account_for_embedding
    if deep == 0 or chunks == 1 or first >= deep:
        return None
    return _problem("deep_stack_beyond_first_stage", "parallel.pipeline", layers=first, deep=deep)


@_rule(megatron)
def parameter_gather_overlap_is_complete(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter asserts both: overlap_param_gather needs the distributed optimizer and overlap_grad_reduce."""
    parallel = job.parallel
    if not parallel.overlap_param_gather or (parallel.distributed_optimizer and parallel.overlap_grad_reduce):
        return None
    return _problem("param_gather_needs_more", "parallel.overlap_param_gather",
                    edit={"parallel.distributed_optimizer": True, "parallel.overlap_grad_reduce": True})  # fmt: skip


@_rule(megatron)
def overlap_suits_model(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """On ranks without images the projector gets no gradient, and an overlapped reduction waits for it for ever."""
    parallel = job.parallel
    if not shape.vision or not (parallel.overlap_grad_reduce or parallel.overlap_param_gather):
        return None
    edit = {"parallel.overlap_grad_reduce": False, "parallel.overlap_param_gather": False}
    return _problem("overlap_with_vision", "parallel.overlap_grad_reduce", "warning", edit=dict(edit))


@_rule(megatron)
def recompute_layers_need_full(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: recompute_num_layers must be None with selective recompute."""
    if job.parallel.recompute_num_layers is None or job.recompute == "full":
        return None
    return _problem("recompute_layers_without_full", "parallel.recompute_num_layers",
                    edit={"parallel.recompute_num_layers": None})  # fmt: skip


@_rule(megatron)
def recompute_modules_need_selective(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """recompute_modules is read with selective recompute only."""
    if not job.parallel.recompute_modules or job.recompute == "selective":
        return None
    return _problem("recompute_modules_without_selective", "parallel.recompute_modules", "warning",
                    edit={"parallel.recompute": "selective"})  # fmt: skip


@_rule(megatron)
def dispatcher_suits_experts(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """allgather moves every token to every expert rank."""
    if not shape.experts or job.parallel.expert == 1 or job.parallel.moe_token_dispatcher == "alltoall":  # noqa: S105
        return None
    return _problem("allgather_with_experts", "parallel.moe_token_dispatcher", "warning",
                    edit={"parallel.moe_token_dispatcher": "alltoall"})  # fmt: skip


@_rule(megatron)
def scheduler_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: `lr_scheduler_type X is not supported`."""
    if job.training.lr_scheduler != "polynomial":
        return None
    return _problem("scheduler_not_supported", "training.lr_scheduler", scheduler=job.training.lr_scheduler,
                    edit={"training.lr_scheduler": "cosine"})  # fmt: skip


@_rule(megatron)
def seed_is_positive(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: `Seed should be a positive integer.`"""
    if job.training.seed > 0:
        return None
    return _problem("seed_not_positive", "training.seed", edit={"training.seed": 42})


@_rule(megatron)
def preference_loss_is_supported(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: `pref_loss: X is not supported.`, raised only at the first loss."""
    if job.training.stage != "dpo" or job.training.dpo.loss in ("sigmoid", "orpo"):
        return None
    return _problem("preference_loss_not_supported", "training.dpo.loss", loss=job.training.dpo.loss,
                    edit={"training.dpo.loss": "sigmoid"})  # fmt: skip


@_rule(megatron)
def data_is_not_shuffled(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter's train loader is a SequentialSampler."""
    return _problem("no_shuffling", "training.dataset", "note") if job.training.dataset else None
