"""Seconds that follow from parameters: exchanging gradients and weights among copies, the optimizer, host memory."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from backend.estimate.array_ops import ZERO, Flag, Number, choose, larger, smaller
from backend.estimate.memo import Shared
from backend.estimate.memory.stage import RankParameters
from backend.estimate.model.layers import Linear, ModelLayers
from backend.estimate.model.parameters import layer_counts
from backend.estimate.time.collectives import Algorithm, algorithm, pace, ways
from backend.estimate.time.communication import Group, exposed
from backend.estimate.time.efficiency import HOST_MEMORY_GB_PER_S
from backend.estimate.time.time_context import Execution, Setting
from backend.job.traits import MemoryTraits

DDP_BUCKET_BYTES = 25 * 2**20
"""torch's DistributedDataParallel, bucket_cap_mb."""


def bucket_of(memory: MemoryTraits, layers: ModelLayers) -> float:
    """Execution.bucket on Hugging Face engines.

    ZeRO-2 fills the buffer of its traits, ZeRO-3 one of hidden^2 elements ("auto" of transformers' integrations/
    deepspeed.py) where a projection alone has no more, FSDP gathers a layer.
    """
    if memory.shards == "none":
        return DDP_BUCKET_BYTES / memory.gradient_bytes
    if memory.reduce_bucket_elements:
        return memory.reduce_bucket_elements
    kind = layers.sparse if layers.sparse and layers.sparse_count else layers.dense
    total = layer_counts(kind).total
    if not memory.live_elements:
        return float(total)
    projections = sum(item.copies * item.parts for item in kind.operators if isinstance(item, Linear))
    return max(float(layers.output.hidden**2), total / projections)


class _Pace(NamedTuple):
    """Seconds a byte among the copies of dense parameters, or among those of experts."""

    gradients: Number
    weights: Number
    """Gathered; what brings the sum to all where the optimizer is not divided."""


def data_seconds(
    setting: Setting,
    ranks: Sequence[RankParameters],
    forward: Sequence[Number],
    backward: Sequence[Number],
    shared: Shared | None = None,
) -> Number:
    """Exposed seconds of gradients and weights among the copies of each stage; the slowest stage decides.

    `ranks` holds one rank of each stage, the rest seconds of one micro-batch on it. The first stage's first forward
    begins, and its last backward ends the iteration; later stages have the time in between for themselves.
    """
    virtual = setting.plan.virtual_pipeline
    # The count of a stage without experts is a plain 0, also where plans are many.
    has_experts = any(not isinstance(rank.expert, int) or rank.expert for rank in ranks)
    asked = (setting, ranks[0], has_experts)
    key = (shared.number(ranks[0]), has_experts) if shared else ()
    paces = shared.once((_paces, *key), _paces, *asked) if shared else _paces(*asked)
    slowest_gather, slowest_reduction, idle_there, idle_back = ZERO, ZERO, ZERO, ZERO
    for rank, there, back in zip(ranks, forward, backward, strict=True):
        exchange = (
            shared.once((_exchange, *key, shared.number(rank)), _exchange, setting, paces, rank)
            if shared
            else _exchange(setting, paces, rank)
        )
        gathered, reduced = _stage(setting, paces, rank, exchange, there, back)
        slowest_gather = larger(slowest_gather, gathered - idle_there)
        slowest_reduction = larger(slowest_reduction, reduced - idle_back)
        idle_there = idle_there + there / virtual
        idle_back = idle_back + back / virtual
    return slowest_gather + slowest_reduction


def _paces(setting: Setting, rank: RankParameters, has_experts: bool) -> tuple[_Pace, _Pace]:
    """Of dense parameters over DP x CP, of experts over their copies, in messages of this rank."""
    plan = setting.plan
    dense = _pace(setting, Group(plan.data * plan.context, plan.tensor), rank.trained_dense, rank.dense)
    if not has_experts:
        return dense, _Pace(0.0, 0.0)
    group = Group(plan.expert_data, plan.expert * plan.expert_tensor)
    return dense, _pace(setting, group, rank.trained_expert, rank.expert)


def _pace(setting: Setting, group: Group, trained: Number, held: Number) -> _Pace:
    machine, efficiency, run = setting.machine, setting.efficiency, setting.run
    bucket, divided = _bucket(run, group), _divided(setting)
    gradients = run.sent_bytes * larger(1.0, smaller(bucket, trained))
    many = isinstance(divided, np.ndarray)
    half = pace(ways(group, machine, efficiency, all_reduce=True), gradients) if many or not divided else 0.0
    if not many and not divided:
        return _Pace(half, half)
    weights = run.element_bytes * larger(1.0, smaller(bucket, held if run.memory.shards == "parameters" else trained))
    found = ways(group, machine, efficiency, all_reduce=False)
    reduced, gathered = pace(found, gradients), pace(found, weights)
    return _Pace(choose(divided, reduced, half), choose(divided, gathered, half)) if many else _Pace(reduced, gathered)


def gradient_algorithm(setting: Setting, rank: RankParameters) -> Algorithm:
    """Of what brings a rank's gradients together with those of its copies: an all-reduce or a reduce-scatter."""
    plan, run = setting.plan, setting.run
    group = Group(plan.data * plan.context, plan.tensor)
    message = run.sent_bytes * larger(1.0, smaller(_bucket(run, group), rank.trained_dense))
    found = ways(group, setting.machine, setting.efficiency, all_reduce=not _divided(setting))
    return algorithm(found, float(message))


def _bucket(run: Execution, group: Group) -> Number:
    """Elements exchanged together (Megatron-Core's distributed_data_parallel.py, bucket_size)."""
    if run.bucket:
        return run.bucket
    return larger(40e6, 1e6 * group.size) if run.overlap_gradients else np.inf


def _divided(setting: Setting) -> Flag:
    """Whether the optimizer is, so that its weights are gathered; else gradients are summed for all."""
    run = setting.run
    return setting.plan.distributed_optimizer if run.megatron else run.memory.shards != "none"


def _exchange(setting: Setting, paces: tuple[_Pace, _Pace], rank: RankParameters) -> tuple[Number, Number]:
    """Seconds of weights and of gradients exchanged once, also where something runs beside it."""
    run = setting.run
    dense, expert = paces
    reduced = run.sent_bytes * (rank.trained_dense * dense.gradients + rank.trained_expert * expert.gradients)
    # With the optimizer divided, weights come back; else the other half of an all-reduce.
    gathered = choose(_divided(setting), run.element_bytes, run.sent_bytes) * (
        rank.trained_dense * dense.weights + rank.trained_expert * expert.weights
    )
    return gathered, reduced


def _stage(
    setting: Setting,
    paces: tuple[_Pace, _Pace],
    rank: RankParameters,
    exchange: tuple[Number, Number],
    forward: Number,
    backward: Number,
) -> tuple[Number, Number]:
    """Exposed seconds of weights and of gradients, all of an iteration."""
    plan, run, memory, efficiency = setting.plan, setting.run, setting.run.memory, setting.efficiency
    (dense, expert), (gathered, reduced) = paces, exchange
    # Interleaved chunks are done one after the other, each for a group of PP micro-batches: but for the last, their
    # exchange runs beside those of the next.
    groups = (1 + plan.pipeline * (plan.virtual_pipeline - 1)) / plan.virtual_pipeline
    last = groups * backward if run.overlap_gradients else 0.0
    first = groups * choose(_divided(setting), forward, backward) if run.overlap_parameters else 0.0
    if run.megatron or memory.shards in ("none", "optimizer"):
        return exposed(gathered, first, efficiency), exposed(reduced, last, efficiency)
    if memory.shards == "gradients":
        return gathered, plan.micro_batches * exposed(reduced, last, efficiency)
    everything = run.element_bytes * (rank.dense * dense.weights + rank.expert * expert.weights)
    if run.gathered_alone:
        # With layers larger than what may stay (1e9 elements), recompute gathers once more.
        copied = run.gathered_alone * plan.data * efficiency.kernel_s
        return plan.micro_batches * (everything + copied), plan.micro_batches * (2 * everything + reduced + 3 * copied)
    there, back = exposed(everything, first, efficiency), exposed(everything + reduced, last, efficiency)
    if run.reduces_once:
        return plan.micro_batches * there, (plan.micro_batches - 1) * exposed(everything, last, efficiency) + back
    return plan.micro_batches * there, plan.micro_batches * back


def _shards(setting: Setting, rank: RankParameters) -> Number:
    """Parameters whose optimizer state this rank steps."""
    plan = setting.plan
    if setting.run.megatron:
        return plan.optimizer_share(rank.trained_dense, rank.trained_expert)
    every = rank.trained_dense + rank.trained_expert
    return every if setting.run.memory.shards == "none" else every / plan.data


def optimizer_seconds(setting: Setting, rank: RankParameters) -> Number:
    """Adam reads and writes its state, reads gradients, writes weights; before, gradients are normed, then zeroed."""
    plan, memory = setting.plan, setting.run.memory
    stepped = _shards(setting, rank)
    held = rank.trained_dense + rank.trained_expert
    if memory.shards in ("gradients", "parameters"):
        held = held / plan.data
    moved = stepped * (2 * memory.optimizer_bytes + memory.gradient_bytes + memory.weight_bytes)
    on_gpu = _on_gpu(setting)
    return (on_gpu * moved + 2 * memory.gradient_bytes * held) / setting.machine.memory


def _on_gpu(setting: Setting) -> Number:
    if setting.run.memory.offloads != "none":
        return 0.0
    return 1 - setting.plan.offload_fraction


def offload_seconds(setting: Setting, rank: RankParameters) -> Number:
    """The host's Adam, gradients down, weights up; where all parameters live there, every gather reads them."""
    memory, machine = setting.run.memory, setting.machine
    away = 1 - _on_gpu(setting)
    if isinstance(away, int | float) and not away:
        return 0.0
    stepped = away * _shards(setting, rank)
    each = 2 * memory.optimizer_bytes + 4 + memory.weight_bytes
    seconds = stepped * each / (1e9 * HOST_MEMORY_GB_PER_S / machine.node)
    seconds = seconds + stepped * (memory.gradient_bytes + setting.run.element_bytes) / machine.host
    if memory.offloads == "everything":
        held = (rank.dense + rank.expert) / setting.plan.data
        seconds = seconds + 2 * setting.plan.micro_batches * held * setting.run.element_bytes / machine.host
    return seconds
