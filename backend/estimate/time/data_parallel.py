"""Time of gradient and weight communication between copies, of the optimizer, and of offloading."""

from collections.abc import Sequence

import numpy as np

from backend.estimate.array_ops import ZERO, Number, choose, larger, smaller
from backend.estimate.frozen_dataclass import positional_dataclass
from backend.estimate.memo import Memo
from backend.estimate.memory.stage import RankParameters
from backend.estimate.model.layers import ModelLayers
from backend.estimate.model.parameters import layer_counts
from backend.estimate.time.collectives import Algorithm, algorithm, algorithm_costs, seconds_per_byte
from backend.estimate.time.communication import Group, exposed
from backend.estimate.time.efficiency import HOST_MEMORY_GB_PER_S
from backend.estimate.time.time_context import Execution, TimeContext
from backend.job.memory_traits import MemoryTraits
from backend.job.model.operators import Linear

DDP_BUCKET_BYTES = 25 * 2**20
"""torch's DistributedDataParallel, bucket_cap_mb."""


def bucket_of(memory: MemoryTraits, layers: ModelLayers) -> float:
    """Return the elements of one communication bucket on a Hugging Face engine.

    ZeRO-2 fills the buffer of its traits. ZeRO-3 fills one of hidden^2 elements ("auto" of transformers'
    integrations/deepspeed.py), or one projection if that is larger. FSDP gathers a layer.
    """
    if memory.shards == "none":
        return DDP_BUCKET_BYTES / memory.gradient_bytes
    if memory.reduce_bucket_elements:
        return memory.reduce_bucket_elements
    kind = layers.kinds[layers.order[-1]]
    total = layer_counts(kind).total
    if memory.reduces_layers:
        return float(total)
    projections = sum(item.copies * item.parts for item in kind.operators if isinstance(item, Linear))
    return max(float(layers.output.hidden**2), total / projections)


@positional_dataclass
class _SecondsPerByte:
    """Seconds per byte between the copies of dense parameters, or between the copies of experts."""

    gradients: Number
    weights: Number
    """Rate of gathered weights; without sharding, rate of the second half of the all-reduce."""


def data_seconds(
    time_context: TimeContext,
    ranks: Sequence[RankParameters],
    forward: Sequence[Number],
    backward: Sequence[Number],
    memo: Memo | None = None,
) -> Number:
    """Return the exposed seconds of gradients and weights between the copies; the slowest stage decides.

    `ranks` holds one rank of each stage. `forward` and `backward` are the seconds of one micro-batch on each stage. The
    iteration begins with the first forward of the first stage and ends with its last backward. Later stages are idle
    before and after their own passes, which hides their communication.
    """
    virtual = time_context.plan.virtual_pipeline
    # The count of a stage without experts is a plain 0, for arrays of plans too.
    has_experts = any(type(rank.expert) is not int or rank.expert for rank in ranks)
    if memo is None:
        rates = _rates(time_context, ranks[0], has_experts)
    else:
        key = (memo.number(ranks[0]), has_experts)
        rates = memo.once((_rates, *key), _rates, time_context, ranks[0], has_experts)
    slowest_gather, slowest_reduction, idle_forward, idle_backward = ZERO, ZERO, ZERO, ZERO
    for stage, rank in enumerate(ranks):
        forward_s, backward_s = forward[stage], backward[stage]
        if memo is None:
            exchange = _exchange(time_context, rates, rank)
        else:
            exchange = memo.once((_exchange, *key, memo.number(rank)), _exchange, time_context, rates, rank)
        gathered, reduced = _stage(time_context, rates, rank, exchange, forward_s, backward_s)
        slowest_gather = larger(slowest_gather, gathered - idle_forward)
        slowest_reduction = larger(slowest_reduction, reduced - idle_backward)
        idle_forward = idle_forward + forward_s / virtual
        idle_backward = idle_backward + backward_s / virtual
    return slowest_gather + slowest_reduction


def _rates(
    time_context: TimeContext, rank: RankParameters, has_experts: bool
) -> tuple[_SecondsPerByte, _SecondsPerByte]:
    """Return the rates of dense parameters over DP x CP and of experts over their copies, for messages of this rank."""
    plan = time_context.plan
    dense = _rate(time_context, Group(plan.data * plan.context, plan.tensor), rank.trained_dense, rank.dense)
    if not has_experts:
        return dense, _SecondsPerByte(0.0, 0.0)
    group = Group(plan.expert_data, plan.expert * plan.expert_tensor)
    return dense, _rate(time_context, group, rank.trained_expert, rank.expert)


def _rate(time_context: TimeContext, group: Group, trained: Number, local: Number) -> _SecondsPerByte:
    """Return the rates of one group.

    ZeRO-2 gives every rank the whole sum of a bucket, of which it keeps its part: DeepSpeed's all-reduce
    (runtime/zero/stage_1_and_2.py allreduce_and_copy_with_multiple_ranks, the default since 0.12.4).
    """
    machine, efficiency, run = time_context.machine, time_context.efficiency, time_context.run
    bucket, divided = _bucket(run, group), time_context.divided
    gradients = time_context.sent_bytes * larger(1.0, smaller(bucket, trained))
    half: Number = 0.0
    reduces_whole = run.memory.shards == "gradients"
    if divided is not True or reduces_whole:
        half = seconds_per_byte(algorithm_costs(group, machine, efficiency, all_reduce=True), gradients)
    if divided is False:
        return _SecondsPerByte(half, half)
    weights = run.element_bytes * larger(1.0, smaller(bucket, local if run.memory.shards == "parameters" else trained))
    costs = algorithm_costs(group, machine, efficiency, all_reduce=False)
    reduced = 2 * half if reduces_whole else seconds_per_byte(costs, gradients)
    gathered = seconds_per_byte(costs, weights)
    return _SecondsPerByte(choose(divided, reduced, half), choose(divided, gathered, half))


def gradient_algorithm(time_context: TimeContext, rank: RankParameters) -> Algorithm:
    """Return the NCCL algorithm of a rank's gradients, for an all-reduce or a reduce-scatter."""
    plan, run = time_context.plan, time_context.run
    group = Group(plan.data * plan.context, plan.tensor)
    message = time_context.sent_bytes * larger(1.0, smaller(_bucket(run, group), rank.trained_dense))
    all_reduce = not time_context.divided or run.memory.shards == "gradients"
    costs = algorithm_costs(group, time_context.machine, time_context.efficiency, all_reduce=all_reduce)
    return algorithm(costs, float(message))


def _bucket(run: Execution, group: Group) -> Number:
    """Return the elements of one message (Megatron-Core's distributed_data_parallel.py, bucket_size)."""
    if run.bucket:
        return run.bucket
    return larger(40e6, 1e6 * group.size) if run.overlap_gradients else np.inf


def _exchange(
    time_context: TimeContext, rates: tuple[_SecondsPerByte, _SecondsPerByte], rank: RankParameters
) -> tuple[Number, Number]:
    """Return the seconds of one exchange of weights and of one of gradients, hidden or not."""
    dense, expert = rates
    reduced = time_context.sent_bytes * (rank.trained_dense * dense.gradients + rank.trained_expert * expert.gradients)
    weights = rank.trained_dense * dense.weights + rank.trained_expert * expert.weights
    return time_context.gathered_bytes * weights, reduced


def _stage(
    time_context: TimeContext,
    rates: tuple[_SecondsPerByte, _SecondsPerByte],
    rank: RankParameters,
    exchange: tuple[Number, Number],
    forward: Number,
    backward: Number,
) -> tuple[Number, Number]:
    """Return the exposed seconds of weights and of gradients in an iteration."""
    plan, run, efficiency = time_context.plan, time_context.run, time_context.efficiency
    memory = run.memory
    (dense, expert), (gathered, reduced) = rates, exchange
    is_once_a_step = run.megatron or memory.shards in ("none", "optimizer")
    if is_once_a_step and not (run.overlap_gradients or run.overlap_parameters):
        return gathered, reduced
    # Interleaved chunks run in turn, each for a group of PP micro-batches. Except for the last chunk, their
    # exchange overlaps with the passes of the next chunk.
    groups = (1 + plan.pipeline * (plan.virtual_pipeline - 1)) / plan.virtual_pipeline
    last = groups * backward if run.overlap_gradients else 0.0
    first = groups * choose(time_context.divided, forward, backward) if run.overlap_parameters else 0.0
    if is_once_a_step:
        return exposed(gathered, first, efficiency), exposed(reduced, last, efficiency)
    if memory.shards == "gradients":
        return gathered, plan.micro_batches * exposed(reduced, last, efficiency)
    everything = run.element_bytes * (rank.dense * dense.weights + rank.expert * expert.weights)
    if run.gathered_alone:
        # Layers are larger than the 1e9 elements that may stay gathered, so recomputation gathers once more.
        copied = run.gathered_alone * plan.data * efficiency.kernel_s
        return plan.micro_batches * (everything + copied), plan.micro_batches * (2 * everything + reduced + 3 * copied)
    again = 0.0 if run.keeps_gathered else everything
    forward_s, backward_s = exposed(everything, first, efficiency), exposed(again + reduced, last, efficiency)
    if run.reduces_once:
        gathers = 1 if run.gathers_once else plan.micro_batches
        return gathers * forward_s, (plan.micro_batches - 1) * exposed(again, last, efficiency) + backward_s
    return plan.micro_batches * forward_s, plan.micro_batches * backward_s


def after_passes_seconds(time_context: TimeContext, rank: RankParameters) -> tuple[Number, Number]:
    """Return the seconds of a rank after its passes: of the optimizer step, and of offloading."""
    plan, memory = time_context.plan, time_context.run.memory
    trained = rank.trained_dense + rank.trained_expert
    if time_context.run.megatron:
        stepped = plan.optimizer_share(rank.trained_dense, rank.trained_expert)
    else:
        stepped = trained if memory.shards == "none" else trained / plan.data
    on_gpu = 1 - plan.offload_fraction if memory.offloads == "none" else 0.0
    gradients = trained / plan.data if memory.shards in ("gradients", "parameters") else trained
    # Adam's memory traffic with what the engine adds, the gradient norm, and zeroing of gradients.
    each = 2 * memory.optimizer_bytes + memory.gradient_bytes + memory.weight_bytes + memory.step_moved_bytes
    moved = stepped * each
    optimizer = (on_gpu * moved + 2 * memory.gradient_bytes * gradients) / time_context.machine.memory
    away = 1.0 - on_gpu
    return optimizer, _offload_seconds(time_context, rank, away * stepped) if away else 0.0


def _offload_seconds(time_context: TimeContext, rank: RankParameters, stepped: Number) -> Number:
    """Return the seconds of offloading: Adam on the host for the parameters `stepped`, and transfers of gradients,
    weights and parameters."""
    memory, machine = time_context.run.memory, time_context.machine
    element = 2 * memory.optimizer_bytes + 4 + memory.weight_bytes
    seconds = stepped * element / (1e9 * HOST_MEMORY_GB_PER_S / machine.node)
    seconds = seconds + stepped * (memory.gradient_bytes + time_context.run.element_bytes) / machine.host
    if memory.offloads == "everything":
        count = (rank.dense + rank.expert) / time_context.plan.data
        seconds = seconds + 2 * time_context.plan.micro_batches * count * time_context.run.element_bytes / machine.host
    return seconds
