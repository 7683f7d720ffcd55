"""Run of a timed row that names one of our Hugging Face engines, as the product models that engine.

Such a row has `engine`. If it trains adapters, it also has `lora`: {rank, targets, traffic: a name of FORMS}.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from backend.estimate.model.layers import ModelLayers
from backend.estimate.time.adapter_run import DROPPED, PACKED, PLAIN, AdapterRun, Gathered, Traffic, after_dropout
from backend.estimate.time.data_parallel import bucket_of
from backend.estimate.time.time_context import Execution
from backend.estimate.time.timing import loops_over_experts
from backend.job.liger import ALL, NONE, Kernels
from backend.job.memory_traits import FOREACH_ADAM_MOVED, LIGER_LOSS_MOVED, MemoryTraits
from backend.job.traits import TRAITS, EngineTraits
from benchmarks.habits import habits_of
from benchmarks.machines import published_gpu
from benchmarks.shapes import NotModelled

FORMS: Mapping[str, Traffic] = {
    "plain": PLAIN,
    "dropped": DROPPED,
    "packed": PACKED,
    "packed, dropped": after_dropout(PACKED, 2),
    # PEFT's default without autocast: adapters, their dropout and the sum are in fp32.
    "fp32, dropped": Traffic(19, 28, 29, 28, 7, 10),
}
"""Work of adapters, by the library of the row: peft/tuners/lora/layer.py and bnb.py; see adapter_run.py."""


def engine_run(row: Mapping[str, Any], layers: ModelLayers) -> Execution:
    """Return the switches of the row. Raises NotModelled for an engine without a memory model."""
    traits = TRAITS[str(row["engine"])]
    if traits.memory is None:
        raise NotModelled(f"engine: {row['engine']}")
    memory = traits.memory
    if row.get("liger"):
        forward, backward = LIGER_LOSS_MOVED
        memory = replace(memory, loss_forward_moved=forward, loss_backward_moved=backward)
    if "foreach AdamW" in str(row.get("notes")):
        # The field `optimizer` tells of the memory alone: many of its rows ran one kernel.
        memory = replace(memory, step_moved_bytes=memory.step_moved_bytes + FOREACH_ADAM_MOVED)
    memory = of_precision(memory, row)
    overlaps = traits.overlaps or bool(row.get("overlap_comm"))
    compiled = "compile" in str(row.get("notes"))
    return Execution(
        fused=compiled,
        compiled=compiled,
        memory=memory,
        bucket=bucket_of(memory, layers),
        reduced_bytes=2 if traits.is_fsdp else None,
        reduces_once=traits.is_fsdp,
        sharding=sharding_of(row, fsdp=traits.is_fsdp),
        keeps_gathered=keeps_gathered(row),
        liger=_liger(row),
        fetches_modules=traits.zero_stage == 3,
        attention_pace=habits_of(row).attention_pace,
        stops_early=habits_of(row).stops_early,
        megatron=False,
        overlap_gradients=overlaps,
        overlap_parameters=overlaps,
        loops_over_experts=loops_over_experts(published_gpu(str(row.get("hardware"))), _precision(row)),
        adapters=row_adapters(row),
        unpacked=str(row.get("method")).startswith("qlora"),
    )


def _precision(row: Mapping[str, Any]) -> str:
    return "fp16" if "fp16" in str(row.get("precision")).lower() else "bf16"


def keeps_gathered(row: Mapping[str, Any]) -> bool:
    """Return whether the row's FSDP keeps gathered weights until the backward pass (`reshards` false)."""
    return row.get("reshards") is False


def sharding_of(row: Mapping[str, Any], *, fsdp: bool) -> Literal["fsdp_1", "fsdp_2", "zero_3"] | None:
    """Return what shards the weights of a row. FSDP is version 1 unless the row or its source tells."""
    if row.get("gpus") == 1 and not _is_fsdp_2(row):
        return None
    if row.get("engine") and TRAITS[str(row["engine"])].zero_stage == 3:
        return "zero_3"
    if not fsdp or "thunder" in str(row.get("notes")):
        return None
    return "fsdp_2" if _is_fsdp_2(row) else "fsdp_1"


def _is_fsdp_2(row: Mapping[str, Any]) -> bool:
    return habits_of(row).fsdp_2 or "FSDP2" in str(row.get("notes")).replace(" ", "")


def of_precision(memory: MemoryTraits, row: Mapping[str, Any]) -> MemoryTraits:
    """Return the memory of the row's run: with `pure_bf16`, weights, gradients and moments are in 16 bits."""
    if not row.get("pure_bf16"):
        return memory
    return replace(memory, weight_bytes=2, gradient_bytes=2, optimizer_bytes=4)


def row_adapters(row: Mapping[str, Any]) -> AdapterRun | None:
    """Return the adapters of a row that describes them."""
    lora = row.get("lora")
    if not lora:
        return None
    engine = row.get("engine")
    return AdapterRun(
        rank=lora["rank"],
        targets=lora["targets"],
        traffic=FORMS[lora["traffic"]],
        megatron=engine is None,
        gathered=_gathered(TRAITS[str(engine)]) if engine else "with_layer",
    )


def _gathered(traits: EngineTraits) -> Gathered:
    """Return how the engine gathers adapters. All published rows of adapters under FSDP are of version 1."""
    return "alone_by_fsdp_1" if traits.is_fsdp else "alone_by_zero_3" if traits.zero_stage == 3 else "with_layer"


def _liger(row: Mapping[str, Any]) -> Kernels:
    """Return what Liger computes. Some programs use its loss on logits that they hold."""
    return ALL._replace(loss=row.get("fused_loss") is not False) if row.get("liger") else NONE
