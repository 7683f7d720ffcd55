"""Time of the LoRA adapters in a layer, beside its frozen weights.

An adapter is two small matrix products, A and B. Memory traffic takes most of its time: A reads the input of the
projection once more, and the output of B is written, scaled, and added to the output of the projection. With few
tokens, the host needs longer to start its operations. Bytes and operations were counted in PEFT's own module
(benchmarks/moved_bytes.py).
"""

from dataclasses import dataclass
from functools import lru_cache

from backend.estimate.memory.megatron_adapters import ROWS, Adapters
from backend.estimate.model.adapters import adapted_linears
from backend.estimate.model.layers import LayerKind
from backend.estimate.model.load import Load
from backend.estimate.time.adapter_run import AdapterRun
from backend.estimate.time.efficiency import FETCH_STARTS, MODULE_START, START_S
from backend.estimate.time.passes import NO_EXTRA, Extra
from backend.estimate.time.time_context import TimeContext

FETCHES_BACKWARD = {"with_layer": 0, "alone_by_fsdp_1": 2, "alone_by_zero_3": 1}
"""Times that the host gathers or reduces a matrix in the backward pass, while the GPU waits. FSDP 1 also reduces its
gradient alone; ZeRO-3 reduces full buckets.

The GPU waits because so small a matrix gives it no work that would hide the next gather: FSDP 1 lets the host be at
most two units ahead (torch 2.13 distributed/fsdp/_runtime_utils.py, _unshard). On 16 published runs with FSDP 1 the
median error is 11.4 %, without this 16.0 %; on six with ZeRO-3 it is 4.6 %, without this 16.7 %."""

ALWAYS_GATHERED = 10
"""ZeRO-3 leaves parameters of at most this many times hidden_size elements gathered on every rank
(stage3_param_persistence_threshold "auto": transformers 5.6.0 integrations/deepspeed.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """Forward and backward bytes per token of all adapters of a layer, by how TP divides them, and multiply-adds."""

    split: float = 0.0
    split_back: float = 0.0
    full: float = 0.0
    """Bytes of gathered tensors."""
    full_back: float = 0.0
    whole: float = 0.0
    """Bytes that only sequence parallelism divides, like tokens at their experts."""
    whole_back: float = 0.0
    gemm: float = 0.0
    """Multiply-adds per token, divided by TP."""
    count: float = 0.0
    gathered: float = 0.0
    """Matrices that the host gathers alone."""


def adapter_work(kind: LayerKind, time_context: TimeContext, load: Load) -> tuple[Extra, Extra]:
    """Return the forward and backward work of a layer's adapters, for one micro-batch on one rank."""
    run = time_context.run.adapters
    if run is None:
        return NO_EXTRA, NO_EXTRA
    work, traffic = _work(kind, run), run.traffic
    scale = time_context.run.element_bytes / 2 * load.tokens / time_context.machine.memory
    multiplied = 2 * load.tokens * work.gemm / load.tensor / time_context.gemm_speed
    # The GPU waits while the host gathers.
    fetch, fetch_back = FETCH_STARTS * work.gathered, FETCHES_BACKWARD[run.gathered] * FETCH_STARTS * work.gathered
    host_s = time_context.efficiency.host_s
    forward_s = scale * (work.split / load.tensor + work.full + work.whole * load.whole)
    backward_s = scale * (work.split_back / load.tensor + work.full_back + work.whole_back * load.whole)
    starts, starts_back = traffic.starts * work.count, traffic.starts_back * work.count
    return (
        Extra(forward_s + multiplied + START_S * starts + host_s * fetch, MODULE_START * starts + fetch),
        Extra(
            backward_s + 2 * multiplied + START_S * starts_back + host_s * fetch_back,
            MODULE_START * starts_back + fetch_back,
        ),
    )


@lru_cache(maxsize=1024)
def _work(kind: LayerKind, run: AdapterRun) -> _Work:
    sums: dict[str, float] = {}

    def add(where: str, forward_s: float, backward_s: float) -> None:
        sums[where] = sums.get(where, 0.0) + forward_s
        sums[f"{where}_back"] = sums.get(f"{where}_back", 0.0) + backward_s

    traffic = run.traffic
    megatron = ((linear, linear.outputs) for linear in Adapters(rank=run.rank, targets=run.targets).linears(kind))
    for linear, outputs in megatron if run.megatron else adapted_linears(kind, run.targets):
        into, out = linear.inputs * linear.active, outputs * linear.active
        row = linear.name in ROWS
        in_where, out_where = ("split", "whole") if row else ("full", "split")
        if linear.share != "split":
            in_where = out_where = "whole"
        add(in_where, traffic.inputs * into, traffic.inputs_back * into)
        add(out_where, traffic.outputs * out, traffic.outputs_back * out)
        sums["gemm"] = sums.get("gemm", 0.0) + run.rank * (into + out)
        modules = linear.copies if linear.single and not run.megatron else 1
        sums["count"] = sums.get("count", 0.0) + modules
        alone = [size for size in (linear.inputs, outputs) if _gathered_alone(run, run.rank * size, kind.hidden)]
        sums["gathered"] = sums.get("gathered", 0.0) + modules * len(alone)
    return _Work(**sums)


def _gathered_alone(run: AdapterRun, elements: float, hidden: int) -> bool:
    if run.gathered == "alone_by_zero_3":
        return elements > ALWAYS_GATHERED * hidden
    return run.gathered == "alone_by_fsdp_1"
