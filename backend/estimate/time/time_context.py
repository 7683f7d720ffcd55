"""The inputs of the time formulas: the plan, the machine, and the way in which the engine runs a step."""

from dataclasses import field

from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.plan import Plan
from backend.estimate.time.adapter_run import AdapterRun
from backend.estimate.time.efficiency import Efficiency, Machine
from backend.estimate.time.kernels import Routing
from backend.job.traits import MemoryTraits


@frozen_dataclass
class Execution:
    """The way in which an engine runs a step, as far as the time depends on it."""

    fused: bool = True
    """Transformer Engine's kernels, not Hugging Face's modules."""
    memory: MemoryTraits
    element_bytes: int = 2
    """Of what kernels read and write."""
    overlap_gradients: bool = False
    """Gradients are reduced while the last backward runs."""
    overlap_parameters: bool = False
    """Parameters are gathered while the first forward runs."""
    overlap_tensor: bool = False
    """Tensor parallel communication runs inside the products (user buffers)."""
    overlap_sends: bool = False
    """Interleaved schedule: messages between stages run beside the other chunk's work."""
    scattered_sends: bool = False
    """Each TP rank sends its part of a message between stages and the parts are gathered there (Megatron-LM before
    Megatron-Core, arXiv 2104.04473 section 4.1); else only sequence parallelism divides messages."""
    overlap_expert: bool = False
    """Tokens travel to and from their experts beside another micro-batch's computation."""
    merged_exchange: bool = False
    """A token goes to each node, and in a node to each rank, once, however many of its experts are there (DeepEP,
    HybridEP)."""
    routing: Routing = "plain"
    rope_fused: bool = True
    """Rotary embedding is one kernel each for queries and keys in Transformer Engine's place of torch's operations."""
    graphed: bool = False
    """CUDA graphs start the kernels of attention and routing; the host waits for nothing."""
    sums_apart: bool = False
    """A weight's gradient is added to the accumulated one by a kernel of its own (megatron-core's
    distributed_data_parallel.py, main_grad.add_), not by the product that makes it (gradient accumulation fusion)."""
    fetches_modules: bool = False
    """The host has every module's weights gathered before a pass and released after it (ZeRO-3)."""
    gathered_alone: int = 0
    """Weights that ZeRO-3 gathers and reduces each on its own while the GPU waits, every rank's part copied by a kernel
    (DeepSpeed of 2021, runtime/zero/partition_parameters.py _allgather_param); 0: as FSDP and ZeRO-3 do since."""
    bucket: float = 0.0
    """Elements whose gradients, or gathered weights, are exchanged together; 0: as Megatron-Core does."""
    reduces_once: bool = False
    """FSDP keeps whole gradients while micro-batches accumulate and reduces them in the last (no_sync)."""
    megatron: bool = True
    reference: bool = False
    """A frozen model judges every micro-batch too (DPO)."""
    compiled: bool = False
    """By torch.compile: it fuses what Transformer Engine's kernels do, and attention stays torch's."""
    attention_pace: float = 1.0
    """Of torch's attention, which Hugging Face's modules call, over FlashAttention 2's."""
    stops_early: bool = False
    """Full recompute ends with the last tensor that backward needs: it spares a layer's last projection (torch's
    checkpoint with use_reentrant=False, from 2.1 on)."""
    adapters: AdapterRun | None = None
    """What LoRA's adapters are like; None: they are not counted."""
    unpacked: bool = False
    """4-bit weights are unpacked before every product (QLoRA)."""
    reduced_bytes: float | None = None
    """Of a gradient on its way to other ranks, where that is not memory.gradient_bytes."""

    @property
    def sent_bytes(self) -> float:
        """Return the bytes of a gradient element in communication."""
        return self.memory.gradient_bytes if self.reduced_bytes is None else self.reduced_bytes


@frozen_dataclass
class TimeContext:
    """The inputs of every formula of a plan's time."""

    plan: Plan
    machine: Machine
    efficiency: Efficiency
    run: Execution
    gemm_speed: float = field(init=False)
    """FLOP/s of projections; the other speeds likewise, efficiency included."""
    attention_speed: float = field(init=False)
    flash_attention_speed: float = field(init=False)
    """That of torch's attention."""
    overlapped: float = field(init=False)
    """What remains of tensor parallel communication."""
    element_s: float = field(init=False)
    """Seconds to read or write one element of an activation or a weight."""

    def __post_init__(self) -> None:
        machine, efficiency = self.machine, self.efficiency
        sustained = efficiency.sustained(machine)
        gemm = machine.gemm * (1.0 if machine.warm else sustained)
        object.__setattr__(self, "gemm_speed", efficiency.product_share * gemm)
        object.__setattr__(self, "attention_speed", efficiency.attention_share * sustained * machine.peak)
        flash = self.run.attention_pace * min(sustained * machine.peak, machine.mma_sync)
        object.__setattr__(self, "flash_attention_speed", efficiency.flash_attention_share * flash)
        object.__setattr__(self, "overlapped", 1 - efficiency.overlap_share if self.run.overlap_tensor else 1)
        object.__setattr__(self, "element_s", self.run.element_bytes / machine.memory)
