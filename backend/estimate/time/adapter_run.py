"""The LoRA adapters of a run: what the time of a step depends on."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.rules.adapters import adapted_modules


class Traffic(NamedTuple):
    """Work of an adapter in 16-bit training: bytes for each element of its projection's input and output, and
    operations."""

    inputs: float
    outputs: float
    inputs_back: float
    outputs_back: float
    starts: float
    """Operations of an adapter in the forward pass, for any number of tokens."""
    starts_back: float


def after_dropout(traffic: Traffic, element_bytes: int) -> Traffic:
    """Return the traffic with a dropout before the adapters.

    It reads and writes elements, and a mask of bytes, in one kernel (torch's native_dropout).
    """
    more = 2 * element_bytes + 1
    return traffic._replace(
        inputs=traffic.inputs + more,
        inputs_back=traffic.inputs_back + more,
        starts=traffic.starts + 1,
        starts_back=traffic.starts_back + 1,
    )


PLAIN = Traffic(2, 12, 10, 8, 4, 6)
"""Adapters in 16 bits, as DeepSpeed stores and FSDP gathers them. In the backward pass, the gradient of the input is
added to that of the projection."""
UPCAST = Traffic(14, 12, 22, 8, 8, 10)
"""Adapters in fp32, as LLaMA-Factory's model/adapter.py keeps them otherwise: PEFT 0.18 casts the input to fp32
(tuners/lora/layer.py, _cast_input_dtype), and autocast casts it back."""
PACKED = Traffic(2, 16, 10, 8, 7, 8)
"""Adapters of 4-bit weights: under autocast the input is not cast, and the output of the projection is copied first
(tuners/lora/bnb.py, Linear4bit). Autocast casts both matrices, and their gradients back. These operations were read,
not counted on a GPU."""
DROPPED = after_dropout(PLAIN, 2)
"""Adapters after a dropout, which reads, writes, and writes a mask of bytes. lora_dropout is 0.05 in ms-swift's
megatron_args.py; the adapter is LoraParallelLinear in mcore_bridge's tuners/lora.py."""

Gathered = Literal["with_layer", "alone_by_fsdp_1", "alone_by_zero_3"]
"""How the host gathers the matrices of adapters before a pass, if ranks hold shards of them.

- FSDP 1: each matrix is a unit of its own (PEFT 0.18.1 utils/other.py fsdp_auto_wrap_policy, which transformers 5.6.0
  sets). With FSDP 2 a layer is one unit (accelerate 1.11.0 utils/fsdp_utils.py).
- ZeRO-3: each matrix is a module, and DeepSpeed gathers module by module.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterRun:
    """Adapters on the frozen weights of a layer."""

    rank: int
    targets: str
    """Names of modules, or `all`; the names are Hugging Face's, or Megatron's on Megatron."""
    traffic: Traffic
    megatron: bool = False
    gathered: Gathered = "with_layer"


def adapters_of(job: Job, shape: ModelShape) -> AdapterRun | None:
    """Return the adapters of a job; None if it trains no adapters."""
    training, traits = job.training, job.traits
    if training.method not in ("lora", "qlora"):
        return None
    is_upcast = training.precision != "fp32" and not traits.zero_stage and not traits.is_fsdp
    if traits.is_megatron:
        traffic = DROPPED
    else:
        traffic = PACKED if training.method == "qlora" else UPCAST if is_upcast else PLAIN
        if job.lora_dropout > 0:
            traffic = after_dropout(traffic, 4 if traffic is UPCAST else 2)
    return AdapterRun(
        rank=training.lora.rank,
        targets=training.lora.targets if traits.is_megatron else adapted_modules(job, shape),
        traffic=traffic,
        megatron=traits.is_megatron,
        gathered=_gathered(job),
    )


def _gathered(job: Job) -> Gathered:
    if job.traits.is_fsdp and job.parallel.fsdp.version == 1:
        return "alone_by_fsdp_1"
    return "alone_by_zero_3" if job.traits.zero_stage == 3 else "with_layer"
