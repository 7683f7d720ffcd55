"""Rules of the parallel sizes on Megatron-Core: what a model and its layers can be divided by."""

from collections.abc import Callable

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules.bound import BoundRule, dividing, largest, problem, registrar

RULES: list[BoundRule] = []
megatron = registrar(RULES, lambda traits: traits.is_megatron)


@megatron
def heads_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_attention_heads must be a multiple of TP."""
    if shape.heads % job.parallel.tensor == 0:
        return None
    return problem(
        "heads_not_divisible",
        "parallel.tensor",
        heads=shape.heads,
        tensor=job.parallel.tensor,
        edit={"parallel.tensor": _fitting_tensor(job, shape)},
    )


@megatron
def groups_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_query_groups must be a multiple or divisor of TP."""
    groups, tensor = shape.kv_heads, job.parallel.tensor
    if groups % tensor == 0 or tensor % groups == 0:
        return None
    return problem("groups_not_divisible", "parallel.tensor", groups=groups, tensor=tensor,
                    edit={"parallel.tensor": _fitting_tensor(job, shape)})  # fmt: skip


@megatron
def widths_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Column-parallel layers are cut into TP equal parts: the FFN, and the vocabulary as mcore_adapter builds it."""
    tensor = job.parallel.tensor
    for name, width in (("intermediate_size", shape.ffn), ("vocab_size", shape.vocab)):
        if width % tensor:
            return problem("width_not_divisible", "parallel.tensor", name=name, width=width, tensor=tensor,
                           edit={"parallel.tensor": _fitting_tensor(job, shape)})  # fmt: skip
    return None


@megatron
def tensor_stays_in_node(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """TP communicates in every layer; across nodes it waits for the network."""
    per_node, tensor, parallel = job.cluster.gpus_per_node, job.parallel.tensor, job.parallel
    if per_node % tensor == 0:
        return None
    inside = _fitting_tensor(job, shape)
    choices: dict[str, dict[str, object]] = {"copies": {"parallel.tensor": inside}}
    stages = parallel.pipeline * tensor // inside
    if tensor % inside == 0 and _legal_cut(job, shape)(stages, parallel.virtual_pipeline):
        choices["stages"] = {"parallel.tensor": inside, "parallel.pipeline": stages}
    values = {"tensor": tensor, "per_node": per_node, "inside": inside, "stages": stages}
    return Problem(code="tensor_across_nodes", field="parallel.tensor", severity="warning", values=values,
                   choices=choices)  # fmt: skip


@megatron
def layers_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter: layers (plus the embedding and loss accounts) must be a multiple of PP x VPP."""
    counted, chunks = _counted(job, shape), job.parallel.pipeline * job.parallel.virtual_pipeline
    if counted % chunks == 0:
        return None
    return problem("layers_not_divisible", "parallel.pipeline", layers=counted, chunks=chunks,
                    edit=_fewer_stages(job, shape))  # fmt: skip


@megatron
def interleaving_needs_stages(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: the interleaved schedule needs PP > 1."""
    if job.parallel.virtual_pipeline == 1 or job.parallel.pipeline > 1:
        return None
    return problem("virtual_without_pipeline", "parallel.virtual_pipeline", edit={"parallel.virtual_pipeline": 1})


@megatron
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


@megatron
def experts_exist(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_moe_experts must be set to use expert parallel; ETP splits experts alone."""
    split = [name for name in ("expert", "expert_tensor") if getattr(job.parallel, name) > 1]
    if not split or shape.experts:
        return None
    edit: dict[str, object] = {f"parallel.{name}": 1 for name in split}
    return problem("expert_parallel_without_experts", f"parallel.{split[0]}", edit=edit)


@megatron
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


@megatron
def expert_ranks_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: world_size must be a multiple of ETP x EP x PP."""
    parallel = job.parallel
    product = parallel.expert_tensor * parallel.expert * parallel.pipeline
    if not shape.experts or job.world_size % product == 0:
        return None
    sizes = {
        "parallel.pipeline": (parallel.pipeline, 0),
        "parallel.expert_tensor": (parallel.expert_tensor, shape.expert_ffn),
        "parallel.expert": (parallel.expert, shape.experts),
    }
    return problem("expert_ranks_not_divisible", "parallel.expert", ranks=job.world_size, product=product,
                    edit=dividing(job.world_size, sizes))  # fmt: skip


@megatron
def expert_width_divides(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ETP cuts every expert's FFN into equal parts."""
    expert_tensor = job.parallel.expert_tensor
    if not shape.experts or shape.expert_ffn % expert_tensor == 0:
        return None
    fitting = largest(expert_tensor, lambda size: shape.expert_ffn % size == 0 and job.world_size % size == 0)
    return problem("width_not_divisible", "parallel.expert_tensor", name="moe_intermediate_size",
                    width=shape.expert_ffn, tensor=expert_tensor, edit={"parallel.expert_tensor": fitting})  # fmt: skip


@megatron
def sequence_divides(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """CP cuts a sequence into 2 x CP chunks; SFT pads to 64 tokens, PT to 8 (mcore_adapter's collators)."""
    padding = 8 if job.training.stage == "pt" else 64
    chunks = 2 * job.parallel.context
    if job.parallel.context == 1 or padding % chunks == 0:
        return None
    fitting = largest(job.parallel.context, lambda size: padding % (2 * size) == 0 and job.world_size % size == 0)
    return problem("sequence_not_divisible", "parallel.context", chunks=chunks, padding=padding,
                    edit={"parallel.context": fitting})  # fmt: skip


@megatron
def packing_without_context(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter asserts that every packed sub-sequence is aligned to 2 x CP; LLaMA-Factory does not align them."""
    if not job.training.packing or job.parallel.context == 1:
        return None
    return problem("packing_with_context", "training.packing", edit={"training.packing": False})


@megatron
def deep_stack_fits_first_stage(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Qwen3-VL feeds deep-stack features to the first layers, which must all be on the first stage (chunk).

    mcore_adapter asserts one layer more (models/qwen3_vl/transformer_block.py), mcore-bridge does not.
    """
    needed = _needed_in_first_stage(job, shape)
    if needed == 0:
        return None
    parallel = job.parallel
    each, rest = divmod(_counted(job, shape), parallel.pipeline * parallel.virtual_pipeline)
    first = each - parallel.account_for_embedding
    if rest or first >= needed:
        return None
    deep = shape.vision.deep_stack if shape.vision else 0
    return problem("deep_stack_beyond_first_stage", "parallel.pipeline", layers=first, deep=deep, needed=needed,
                    edit=_fewer_stages(job, shape))  # fmt: skip


def _fitting_tensor(job: Job, shape: ModelShape) -> int:
    """The largest TP up to the job's that the heads, the groups, the widths and a node's GPUs all allow."""
    groups, wholes = shape.kv_heads, (shape.heads, shape.ffn, shape.vocab, job.cluster.gpus_per_node)
    return largest(
        job.parallel.tensor,
        lambda size: not any(whole % size for whole in wholes) and (groups % size == 0 or size % groups == 0),
    )


def _counted(job: Job, shape: ModelShape) -> int:
    """What is cut into stages: the layers, and what is counted as one."""
    return shape.layers + job.parallel.account_for_embedding + job.parallel.account_for_loss


def _needed_in_first_stage(job: Job, shape: ModelShape) -> int:
    """Layers that the first stage (chunk) must have for its deep-stack features; 0 where the model has none."""
    deep = shape.vision.deep_stack if shape.vision else 0
    return deep and deep + (job.traits.environment == "llamafactory")


def _legal_cut(job: Job, shape: ModelShape) -> Callable[[int, int], bool]:
    """Whether the layers can be cut into (stages, chunks a stage)."""
    counted, needed = _counted(job, shape), _needed_in_first_stage(job, shape)
    embedding = job.parallel.account_for_embedding

    def legal(stages: int, chunks: int) -> bool:
        each, rest = divmod(counted, stages * chunks)
        return rest == 0 and each - embedding >= needed and (stages > 1 or chunks == 1)

    return legal


def _fewer_stages(job: Job, shape: ModelShape) -> dict[str, object]:
    """The edit to the most stages, and then chunks, that the layers can be cut into; empty where there are none."""
    stages, chunks = job.parallel.pipeline, job.parallel.virtual_pipeline
    ranks, legal = job.world_size, _legal_cut(job, shape)
    for fewer in range(stages, 0, -1):
        for least in range(chunks, 0, -1) if ranks % fewer == 0 else ():
            if legal(fewer, least):
                sizes = {"parallel.pipeline": (stages, fewer), "parallel.virtual_pipeline": (chunks, least)}
                return {path: now for path, (old, now) in sizes.items() if now != old}
    return {}
