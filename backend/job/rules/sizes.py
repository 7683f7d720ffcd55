"""Rules of the parallel sizes on Megatron-Core: the divisors of a model and its layers."""

from math import gcd

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem
from backend.job.rules import scopes
from backend.job.rules.bound import BoundRule, dividing, largest, problem, registrar
from backend.job.rules.stages import equal_cut, recut
from backend.job.unestimated import is_known

RULES: list[BoundRule] = []
rule = registrar(RULES)


@rule(scopes.megatron)
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


@rule(scopes.megatron)
def groups_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_query_groups must be a multiple or divisor of TP."""
    groups, tensor = shape.kv_heads, job.parallel.tensor
    if groups % tensor == 0 or tensor % groups == 0:
        return None
    return problem("groups_not_divisible", "parallel.tensor", groups=groups, tensor=tensor,
                    edit={"parallel.tensor": _fitting_tensor(job, shape)})  # fmt: skip


@rule(scopes.megatron)
def widths_divide(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """Column-parallel layers are cut into TP equal parts: the FFN, and the vocabulary as mcore_adapter builds it."""
    tensor = job.parallel.tensor
    for name, width in (("intermediate_size", shape.ffn), ("vocab_size", shape.vocab)):
        if width % tensor:
            return problem("width_not_divisible", "parallel.tensor", name=name, width=width, tensor=tensor,
                           edit={"parallel.tensor": _fitting_tensor(job, shape)})  # fmt: skip
    return None


@rule(scopes.megatron)
def tensor_stays_in_node(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """TP communicates in every layer; across nodes it waits for the network."""
    per_node, tensor, parallel = job.cluster.gpus_per_node, job.parallel.tensor, job.parallel
    if per_node % tensor == 0:
        return None
    node_tensor = _fitting_tensor(job, shape)
    choices: dict[str, dict[str, object]] = {"copies": {"parallel.tensor": node_tensor}}
    stages = parallel.pipeline * tensor // node_tensor
    if is_known(shape) and tensor % node_tensor == 0 and equal_cut(job, shape)(stages, parallel.virtual_pipeline):
        choices["stages"] = recut(job, {"parallel.tensor": node_tensor, "parallel.pipeline": stages})
    values = {"tensor": tensor, "per_node": per_node, "inside": node_tensor, "stages": stages}
    return Problem(code="tensor_across_nodes", field="parallel.tensor", severity="warning", values=values,
                   choices=choices)  # fmt: skip


@rule(scopes.megatron)
def experts_exist(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """megatron-core: num_moe_experts must be set to use expert parallel; ETP splits only experts."""
    split = [name for name in ("expert", "expert_tensor") if getattr(job.parallel, name) > 1]
    if not split or shape.experts:
        return None
    edit: dict[str, object] = {f"parallel.{name}": 1 for name in split}
    return problem("expert_parallel_without_experts", f"parallel.{split[0]}", edit=edit)


@rule(scopes.megatron)
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


@rule(scopes.megatron)
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
                    edit=recut(job, dividing(job.world_size, sizes)))  # fmt: skip


@rule(scopes.megatron)
def expert_width_divides(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """ETP cuts every expert's FFN into equal parts."""
    expert_tensor = job.parallel.expert_tensor
    if not shape.experts or shape.expert_ffn % expert_tensor == 0:
        return None
    fitting = largest(expert_tensor, lambda size: shape.expert_ffn % size == 0 and job.world_size % size == 0)
    return problem("width_not_divisible", "parallel.expert_tensor", name="moe_intermediate_size",
                    width=shape.expert_ffn, tensor=expert_tensor, edit={"parallel.expert_tensor": fitting})  # fmt: skip


@rule(scopes.mcore_adapter)
def sequence_divides(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """CP cuts a sequence into 2 x CP chunks; SFT pads to 64 tokens, PT to 8 (mcore_adapter's collators).

    ms-swift pads every sample to a multiple of 2 x CP (4.6.0 template/base.py _get_megatron_cp_length).
    """
    padding = 8 if job.training.stage == "pt" else 64
    chunks = 2 * job.parallel.context
    if job.parallel.context == 1 or padding % chunks == 0:
        return None
    fitting = largest(job.parallel.context, lambda size: padding % (2 * size) == 0 and job.world_size % size == 0)
    return problem("sequence_not_divisible", "parallel.context", chunks=chunks, padding=padding,
                    edit={"parallel.context": fitting})  # fmt: skip


@rule(scopes.mcore_adapter)
def packing_without_context(job: Job, shape: ModelShape, gpu: Gpu) -> Problem | None:
    """mcore_adapter asserts that every packed sub-sequence is aligned to 2 x CP; LLaMA-Factory does not align them."""
    if not job.training.packing or job.parallel.context == 1:
        return None
    return problem("packing_with_context", "training.packing", edit={"training.packing": False})


def _fitting_tensor(job: Job, shape: ModelShape) -> int:
    """Return the largest TP up to the job's that divides the heads, the groups, the widths and a node's GPUs."""
    if not is_known(shape):
        return gcd(job.parallel.tensor, job.cluster.gpus_per_node)
    groups, dividends = shape.kv_heads, (shape.heads, shape.ffn, shape.vocab, job.cluster.gpus_per_node)
    return largest(
        job.parallel.tensor,
        lambda size: not any(dividend % size for dividend in dividends) and (groups % size == 0 or size % groups == 0),
    )
