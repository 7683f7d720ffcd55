"""Seconds that follow from parameters: exchanging gradients and weights among copies, the optimizer, host memory."""

from collections.abc import Sequence

from backend.estimate.communication import Group, exposed, ring_pace
from backend.estimate.efficiency import HOST_MEMORY_GB_PER_S
from backend.estimate.layer_time import Setting
from backend.estimate.numeric import Number, choose, larger
from backend.estimate.stage import RankParameters


def data_seconds(
    setting: Setting, ranks: Sequence[RankParameters], forward: Sequence[Number], backward: Sequence[Number]
) -> Number:
    """Exposed seconds of gradients and weights among the copies of each stage; the slowest stage decides.

    `ranks` holds one rank of each stage, the rest seconds of one micro-batch on it. The first stage's first forward
    begins, and its last backward ends the iteration; later stages have the time in between for themselves.
    """
    virtual = setting.plan.virtual_pipeline
    # The count of a stage without experts is a plain 0, also where plans are many.
    paces = _paces(setting, has_experts=any(not isinstance(rank.expert, int) or rank.expert for rank in ranks))
    slowest_gather, slowest_reduction, idle_there, idle_back = 0.0, 0.0, 0.0, 0.0
    for rank, there, back in zip(ranks, forward, backward, strict=True):
        gathered, reduced = _stage(setting, paces, rank, there, back)
        slowest_gather = larger(slowest_gather, gathered - idle_there)
        slowest_reduction = larger(slowest_reduction, reduced - idle_back)
        idle_there = idle_there + there / virtual
        idle_back = idle_back + back / virtual
    return slowest_gather + slowest_reduction


def _paces(setting: Setting, *, has_experts: bool) -> tuple[Number, Number]:
    """Seconds a byte of one exchange: of dense parameters over DP x CP, of experts over their copies."""
    plan, machine, efficiency = setting.plan, setting.machine, setting.efficiency
    dense = ring_pace(Group(plan.data * plan.context, plan.tensor), machine, efficiency)
    if not has_experts:
        return dense, 0.0
    return dense, ring_pace(Group(plan.expert_data, plan.expert * plan.expert_tensor), machine, efficiency)


def _stage(
    setting: Setting, paces: tuple[Number, Number], rank: RankParameters, forward: Number, backward: Number
) -> tuple[Number, Number]:
    """Exposed seconds of weights and of gradients, all of an iteration."""
    plan, run, memory, efficiency = setting.plan, setting.run, setting.run.memory, setting.efficiency
    dense_pace, expert_pace = paces
    trained = rank.trained_dense * dense_pace + rank.trained_expert * expert_pace
    reduced = memory.gradient_bytes * trained
    # With the optimizer divided, weights come back; else the other half of an all-reduce.
    divided = plan.distributed_optimizer if run.megatron else memory.shards != "none"
    gathered = choose(divided, run.element_bytes * trained, reduced)
    # Interleaved chunks are done one after the other, each for a group of PP micro-batches: but for the last, their
    # exchange runs beside those of the next.
    groups = (1 + plan.pipeline * (plan.virtual_pipeline - 1)) / plan.virtual_pipeline
    last = groups * backward if run.overlap_gradients else 0.0
    first = groups * choose(divided, forward, backward) if run.overlap_parameters else 0.0
    if run.megatron or memory.shards in ("none", "optimizer"):
        return exposed(gathered, first, efficiency), exposed(reduced, last, efficiency)
    if memory.shards == "gradients":
        return gathered, plan.micro_batches * exposed(reduced, last, efficiency)
    everything = run.element_bytes * (rank.dense * dense_pace + rank.expert * expert_pace)
    if run.gathered_alone:
        # With layers larger than what may stay (1e9 elements), recompute gathers once more.
        copied = run.gathered_alone * plan.data * efficiency.kernel_s
        return plan.micro_batches * (everything + copied), plan.micro_batches * (2 * everything + reduced + 3 * copied)
    there, back = exposed(everything, first, efficiency), exposed(everything + reduced, last, efficiency)
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
