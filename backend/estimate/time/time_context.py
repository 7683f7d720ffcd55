"""The inputs of the time formulas: the plan, the machine, and the way in which the engine runs a step."""

from dataclasses import field
from typing import Any, Literal

from backend.estimate.array_ops import Flag, Number, choose
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.plan import Plan
from backend.estimate.time.adapter_run import AdapterRun
from backend.estimate.time.efficiency import Efficiency, Machine
from backend.estimate.time.operator_kernels import Routing
from backend.job.liger import NONE, Kernels
from backend.job.memory_traits import MemoryTraits

NEWEST_SPEED = 1.3
"""Speed of FlashAttention 3 on Hopper, and of 4 on Hopper and Blackwell, over that of Transformer Engine's attention.
Attention takes 82 % of the FLOPs of steps of 262,144 tokens with full recompute; these have 419 TFLOP/s on an H200 and
852 on a B200 (https://github.com/stas00/ml-engineering/blob/master/insights/when-to-upgrade-gpus/README.md), which
gives 620 and 1,260 for attention."""

RECURRENCE_SHARE = 0.63
"""Least share of the peak in the products of linear attention. Its kernels use a GPU's own instructions. They came out
at FlashAttention 2's speed on Hopper, and no run on Blackwell is known."""


@frozen_dataclass
class Execution:
    """The way in which an engine runs a step, as far as the time depends on it."""

    fused: bool = True
    """Whether Transformer Engine's kernels run, and not Hugging Face's modules."""
    memory: MemoryTraits
    element_bytes: float = 2.0
    """Bytes of an element that kernels read and write."""
    overlap_gradients: bool = False
    """Gradients are reduced during the last backward pass."""
    overlap_parameters: bool = False
    """Parameters are gathered during the first forward pass."""
    overlap_tensor: bool = False
    """Tensor parallel communication runs inside the matrix products (user buffers)."""
    overlap_sends: bool = False
    """Interleaved schedule: messages between stages overlap with the work of the other chunk."""
    scattered_sends: bool = False
    """Each TP rank sends its part of a message between stages, and the receiver gathers the parts (Megatron-LM before
    Megatron-Core, arXiv 2104.04473 section 4.1). Otherwise only sequence parallelism divides messages."""
    overlap_expert: bool = False
    """The exchange of tokens with experts overlaps with the computation of another micro-batch."""
    merged_exchange: bool = False
    """A token is sent once to each node, and once to each rank in a node, for any number of its experts there (DeepEP,
    HybridEP)."""
    routing: Routing = "plain"
    rope_fused: bool = True
    """Transformer Engine computes rotary embedding in one kernel each for queries and keys, in place of torch's
    operations."""
    loops_over_experts: bool = False
    """torch multiplies Hugging Face's experts one after the other (loops_over_experts in timing.py)."""
    graphed: bool = False
    """CUDA graphs start the kernels of attention and routing, so that nothing waits for the host."""
    sums_apart: bool = False
    """A separate kernel adds the gradient of a weight to the accumulated gradient (megatron-core's
    distributed_data_parallel.py, main_grad.add_). Otherwise the matrix product adds it (gradient accumulation
    fusion)."""
    fetches_modules: bool = False
    """The host gathers the weights of every module before a pass and releases them after it (ZeRO-3)."""
    sharding: Literal["fsdp_1", "fsdp_2", "zero_3"] | None = None
    """What shards the weights, if it copies them between buffers (shard_copies.py). FSDP 1 and ZeRO-3 copy nothing on a
    single GPU."""
    keeps_gathered: bool = False
    """FSDP gathers a layer's weights in the forward pass and keeps them until the backward pass used them
    (SHARD_GRAD_OP, or reshard_after_forward=False), so that the backward pass gathers nothing."""
    gathers_once: bool = False
    """With `keeps_gathered`, weights stay gathered until the last micro-batch of a step: FSDP 1 frees them after a
    backward pass only if it reduces gradients (torch 2.13 distributed/fsdp/_runtime_utils.py _should_free_in_backward).
    FSDP 2 frees them after each (_fully_shard/_fsdp_param_group.py reshard_after_backward)."""
    gathered_alone: int = 0
    """Number of weights that ZeRO-3 gathers and reduces one by one while the GPU waits; a kernel copies the part of
    every rank (DeepSpeed of 2021, runtime/zero/partition_parameters.py _allgather_param). 0 for FSDP and for ZeRO-3
    since then."""
    bucket: float = 0.0
    """Elements of gradients, or of gathered weights, in one exchange; 0 for Megatron-Core's rule."""
    reduces_once: bool = False
    """FSDP keeps whole gradients while micro-batches accumulate, and reduces them in the last one (no_sync)."""
    megatron: bool = True
    forward_passes: int = 1
    """Forward passes of a micro-batch, those of a frozen reference model included (Job.forward_passes)."""
    compiled: bool = False
    """torch.compile fuses the operations that Transformer Engine's kernels fuse; attention is torch's."""
    liger: Kernels = NONE
    """What Liger's kernels compute of Hugging Face's modules. Its loss computes the logits chunk by chunk."""
    masked: Number = 0.0
    """Share of micro-batches in which torch's SDPA gets a mask of all pairs of tokens (masked_share)."""
    attention_pace: float = 1.0
    """Speed of torch's attention, which Hugging Face's modules call, over that of FlashAttention 2."""
    stops_early: bool = False
    """Full recompute ends with the last tensor that the backward pass needs, and skips the last projection of a layer
    (torch's checkpoint with use_reentrant=False, from 2.1 on)."""
    keeps_products: bool = False
    """Full recompute keeps the outputs of attention and of every second product (torchtitan's selective_ac_option
    "op")."""
    recomputed_layers: float = 1.0
    """Share of the layers that full recompute repeats, if it stops early (torchtitan's selective_ac_option "2")."""
    adapters: AdapterRun | None = None
    """LoRA adapters; None if they are not counted."""
    unpacked: bool = False
    """4-bit weights are unpacked before every product (QLoRA)."""
    reduced_bytes: float | None = None
    """Bytes of a gradient element in communication, if it is not memory.gradient_bytes."""


@frozen_dataclass
class TimeContext:
    """The inputs of every formula of a plan's time."""

    plan: Plan
    machine: Machine
    efficiency: Efficiency
    run: Execution
    gemm_speed: float = field(init=False)
    """FLOP/s of projections, efficiency included; likewise the other speeds."""
    single_speed: float = field(init=False)
    """FLOP/s of products in fp32."""
    attention_speed: float = field(init=False)
    flash_attention_speed: float = field(init=False)
    """FLOP/s of FlashAttention 2."""
    newest_attention_speed: float = field(init=False)
    """FLOP/s of FlashAttention 3 or 4."""
    recurrence_speed: float = field(init=False)
    """FLOP/s of linear attention."""
    overlapped: float = field(init=False)
    """Exposed share of tensor parallel communication."""
    element_s: float = field(init=False)
    """Seconds to read or write one element of an activation or a weight."""
    accumulated_s: float = field(init=False)
    """Seconds to add one element of a weight's gradient to the accumulated gradient, which is read and written. If a
    separate kernel adds it, the new gradient is written and read too."""
    sent_bytes: float = field(init=False)
    """Bytes of a gradient element in communication."""
    divided: Flag = field(init=False)
    """Whether the optimizer is sharded. If so, weights are gathered; otherwise gradients are all-reduced."""
    gathered_bytes: Number = field(init=False)
    """Bytes of an element of gathered weights, or of a gradient in the second half of an all-reduce."""

    def __post_init__(self) -> None:
        machine, efficiency, run = self.machine, self.efficiency, self.run
        sustained, attention_peak = efficiency.sustained(machine), machine.attention_peak
        gemm = machine.gemm * (1.0 if machine.warm else sustained)
        flash = run.attention_pace * min(sustained * attention_peak, machine.mma_sync)
        recurrence = min(sustained * attention_peak, max(machine.mma_sync, RECURRENCE_SHARE * attention_peak))
        computed: Any = self
        computed.gemm_speed = efficiency.product_share * gemm
        computed.single_speed = efficiency.product_share * machine.single
        computed.attention_speed = efficiency.attention_share * sustained * attention_peak
        computed.flash_attention_speed = efficiency.flash_attention_share * flash
        computed.newest_attention_speed = NEWEST_SPEED * computed.attention_speed
        computed.recurrence_speed = efficiency.flash_attention_share * run.attention_pace * recurrence
        computed.overlapped = 1.0 - efficiency.overlap_share if run.overlap_tensor else 1.0
        computed.element_s = run.element_bytes / machine.memory
        accumulated_s = 2 * run.memory.gradient_bytes / machine.memory
        computed.accumulated_s = accumulated_s + 2 * computed.element_s if run.sums_apart else accumulated_s
        computed.sent_bytes = run.memory.gradient_bytes if run.reduced_bytes is None else run.reduced_bytes
        computed.divided = self.plan.distributed_optimizer if run.megatron else run.memory.shards != "none"
        computed.gathered_bytes = choose(computed.divided, run.element_bytes, computed.sent_bytes)
