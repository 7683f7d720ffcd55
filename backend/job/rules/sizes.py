"""Rules of the parallel sizes on Megatron-Core: what a model and its layers can be divided by."""

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules.bound import BoundRule, largest, problem, registrar

RULES: list[BoundRule] = []
megatron = registrar(RULES, lambda traits: traits.is_megatron)


@megatron()
def heads_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_attention_heads must be a multiple of TP."""
    if shape.heads % job.parallel.tensor == 0:
        return None
    return problem(
        "heads_not_divisible",
        "parallel.tensor",
        heads=shape.heads,
        tensor=job.parallel.tensor,
        edit={"parallel.tensor": largest(job.parallel.tensor, lambda size: shape.heads % size == 0)},
    )


@megatron()
def groups_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_query_groups must be a multiple or divisor of TP."""
    groups, tensor = shape.kv_heads, job.parallel.tensor
    if groups % tensor == 0 or tensor % groups == 0:
        return None
    fitting = largest(tensor, lambda size: (groups % size == 0 or size % groups == 0) and shape.heads % size == 0)
    return problem("groups_not_divisible", "parallel.tensor", groups=groups, tensor=tensor,
                    edit={"parallel.tensor": fitting})  # fmt: skip


@megatron()
def widths_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Column-parallel layers are cut into TP equal parts: the FFN, and the vocabulary as mcore_adapter builds it."""
    tensor = job.parallel.tensor
    for name, width in (("intermediate_size", shape.ffn), ("vocab_size", shape.vocab)):
        if width % tensor:
            fitting = largest(tensor, lambda size, width=width: width % size == 0)  # type: ignore[misc]
            return problem("width_not_divisible", "parallel.tensor", name=name, width=width, tensor=tensor,
                           edit={"parallel.tensor": fitting})  # fmt: skip
    return None


@megatron()
def tensor_stays_in_node(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """TP communicates in every layer; across nodes it waits for the network."""
    per_node, tensor = job.cluster.gpus_per_node, job.parallel.tensor
    if per_node % tensor == 0:
        return None
    return problem("tensor_across_nodes", "parallel.tensor", "warning", tensor=tensor, per_node=per_node)


@megatron()
def layers_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: layers (plus the embedding and loss accounts) must be a multiple of PP x VPP."""
    parallel = job.parallel
    counted = shape.layers + parallel.account_for_embedding + parallel.account_for_loss
    chunks = parallel.pipeline * parallel.virtual_pipeline
    if counted % chunks == 0:
        return None
    return problem("layers_not_divisible", "parallel.pipeline", layers=counted, chunks=chunks)


@megatron()
def interleaving_needs_stages(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: the interleaved schedule needs PP > 1."""
    if job.parallel.virtual_pipeline == 1 or job.parallel.pipeline > 1:
        return None
    return problem("virtual_without_pipeline", "parallel.virtual_pipeline", edit={"parallel.virtual_pipeline": 1})


@megatron()
def interleaving_needs_micro_batches(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core schedules.py: with VPP at least PP micro-batches, and no remainder smaller than PP."""
    parallel, micro_batches = job.parallel, job.accumulation
    if parallel.virtual_pipeline == 1 or parallel.pipeline == 1:
        return None
    if micro_batches >= parallel.pipeline and micro_batches % parallel.pipeline == 0:
        return None
    fitting = -(-micro_batches // parallel.pipeline) * parallel.pipeline
    edit: dict[str, object] = {"training.gradient_accumulation_steps": fitting}
    if job.training.global_batch_size is not None:
        edit = {"parallel.virtual_pipeline": 1}
    return problem("too_few_micro_batches", "training.gradient_accumulation_steps", micro_batches=micro_batches,
                    pipeline=parallel.pipeline, edit=edit)  # fmt: skip


@megatron()
def experts_exist(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_moe_experts must be set to use expert parallel; ETP splits experts alone."""
    split = [name for name in ("expert", "expert_tensor") if getattr(job.parallel, name) > 1]
    if not split or shape.experts:
        return None
    edit: dict[str, object] = {f"parallel.{name}": 1 for name in split}
    return problem("expert_parallel_without_experts", f"parallel.{split[0]}", edit=edit)


@megatron()
def experts_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Every expert-parallel rank holds the same number of whole experts."""
    if not shape.experts or shape.experts % job.parallel.expert == 0:
        return None
    return problem(
        "experts_not_divisible",
        "parallel.expert",
        experts=shape.experts,
        expert=job.parallel.expert,
        edit={"parallel.expert": largest(job.parallel.expert, lambda size: shape.experts % size == 0)},
    )


@megatron()
def expert_ranks_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: world_size must be a multiple of ETP x EP x PP."""
    parallel = job.parallel
    product = parallel.expert_tensor * parallel.expert * parallel.pipeline
    if not shape.experts or job.world_size % product == 0:
        return None
    return problem("expert_ranks_not_divisible", "parallel.expert", ranks=job.world_size, product=product)


@megatron()
def expert_width_divides(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ETP cuts every expert's FFN into equal parts."""
    if not shape.experts or shape.expert_ffn % job.parallel.expert_tensor == 0:
        return None
    return problem("width_not_divisible", "parallel.expert_tensor", name="moe_intermediate_size",
                    width=shape.expert_ffn, tensor=job.parallel.expert_tensor)  # fmt: skip


@megatron()
def sequence_divides(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """CP cuts a sequence into 2 x CP chunks; SFT pads to 64 tokens, PT to 8 (mcore_adapter's collators)."""
    padding = 8 if job.training.stage == "pt" else 64
    chunks = 2 * job.parallel.context
    if job.parallel.context == 1 or padding % chunks == 0:
        return None
    fitting = largest(job.parallel.context, lambda size: padding % (2 * size) == 0 and job.world_size % size == 0)
    return problem("sequence_not_divisible", "parallel.context", chunks=chunks, padding=padding,
                    edit={"parallel.context": fitting})  # fmt: skip


@megatron()
def packing_without_context(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter asserts that every packed sub-sequence is aligned to 2 x CP; LLaMA-Factory does not align them."""
    if not job.training.packing or job.parallel.context == 1:
        return None
    return problem("packing_with_context", "training.packing", edit={"training.packing": False})


@megatron()
def deep_stack_fits_first_stage(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Qwen3-VL feeds deep-stack features to the first layers, which must all be on the first stage (chunk).

    mcore_adapter asserts one layer more (models/qwen3_vl/transformer_block.py), mcore-bridge does not.
    """
    deep = shape.vision.deep_stack if shape.vision else 0
    parallel = job.parallel
    chunks = parallel.pipeline * parallel.virtual_pipeline
    counted = shape.layers + parallel.account_for_embedding + parallel.account_for_loss
    first = counted // chunks - parallel.account_for_embedding
    needed = deep + (job.traits.environment == "llamafactory")
    if deep == 0 or first >= needed:
        return None
    return problem("deep_stack_beyond_first_stage", "parallel.pipeline", layers=first, deep=deep, needed=needed)
