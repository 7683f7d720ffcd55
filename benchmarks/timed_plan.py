"""Parallel sizes, batch and recompute of a timed row."""

import math
import re
from collections.abc import Mapping
from typing import Any

from backend.estimate.plan import Plan
from benchmarks.habits import Habits, attention_kind
from benchmarks.shapes import NotModelled


def number(value: Any) -> float | None:
    """Return a positive finite number, else None."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if usable else None


def size(row: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return a size of the row. Raises NotModelled if it and the default are missing."""
    value = int(number(row.get(key)) or 0)
    if value:
        return value
    if default is None:
        raise NotModelled(f"not published: {key}")
    return default


def _chunks(layers: int) -> int:
    """Return the most chunks up to eight that divide a stage's layers, as NVIDIA's recipes have; else one per layer."""
    few = [count for count in range(2, 9) if layers % count == 0]
    return max(few) if few else layers


def timed_plan(row: Mapping[str, Any], habits: Habits, layers: int) -> Plan:
    """Return the plan. Raises NotModelled if a size is missing or does not divide."""
    source = str(row.get("source"))
    gpus, tensor, pipeline = size(row, "gpus"), size(row, "tp", 1), size(row, "pp", 1)
    context = size(row, "cp", 1)
    if row.get("tp") is None and row.get("fsdp") is None:
        raise NotModelled("not published: tp")
    data = max(1, gpus // (tensor * pipeline * context))
    # The default sequence length of Megatron-Bridge's pretraining recipes is 4096.
    recipe = 4096 if "verification card" in source and str(row.get("method")).startswith("pretrain") else None
    sequence = size(row, "seq", recipe)
    batch = size(row, "gbs", 0)
    micro_batch = size(row, "mbs", 1)
    if batch and batch % (micro_batch * data):
        raise NotModelled("a batch that the copies do not share")
    local = re.search(r"local batch (\d+)", str(row.get("notes")))
    micro_batches = batch // (micro_batch * data) if batch else int(local[1]) // micro_batch if local else 1
    virtual = size(row, "vpp", _chunks(layers // pipeline) if habits.interleaved else 1)
    if pipeline > 1 and "nterleaved" in str(row.get("notes")) and virtual == 1:
        # torchtitan's Interleaved1F1B: two chunks per stage by default.
        virtual = 2
    if pipeline > 1 and virtual > 1 and micro_batches % pipeline:
        raise NotModelled("interleaved micro-batches that do not fill groups of the pipeline's size")
    recompute = str(row.get("recompute") or "none")
    return Plan(
        tensor=tensor,
        pipeline=pipeline,
        virtual_pipeline=virtual if pipeline > 1 else 1,
        context=context,
        expert=size(row, "ep", 1),
        expert_tensor=size(row, "etp", 1),
        data=data,
        sequence_parallel=sequence_parallel(source, tensor, recompute),
        sequence_length=sequence,
        micro_batch=micro_batch,
        micro_batches=max(1, micro_batches),
        distributed_optimizer=size(row, "zero", 1) > 0 if row.get("zero") != 0 else False,
        attention=attention_kind(row),
        context_a2a="SimuMax" in source and context > 1,
        **layer_cut(layers, pipeline * virtual),
        **_recompute(recompute),
    )


def layer_cut(layers: int, pieces: int) -> dict[str, Any]:
    """Return how NVIDIA's recipes cut layers that do not divide.

    Llama 405B (126 layers) and Qwen3 235B (94) count embedding and loss as layers. DeepSeek-V3 (61) fills every piece
    but the last, which holds the rest (NVIDIA-NeMo/Megatron-Bridge@05d003f recipes/deepseek/deepseek_v3.py layout_map).
    """
    if layers % pieces == 0:
        return {}
    if (layers + 2) % pieces == 0:
        return {"account_for_embedding": True, "account_for_loss": True}
    per_piece = -(-layers // pieces)
    return {"pipeline_layout": tuple(max(0, min(per_piece, layers - per_piece * piece)) for piece in range(pieces))}


def sequence_parallel(source: str, tensor: int, recompute: str) -> bool:
    if any(name in source for name in ("vTrain", "Narayanan")):
        return False
    if "Korthikanti" in source:
        return tensor > 1 and ("sequence" in recompute or ("SP" in recompute and "no SP" not in recompute))
    return tensor > 1


def _recompute(text: str) -> dict[str, Any]:
    text = text.removeprefix("baseline with ")
    if text.startswith(("full", "selective AC")):
        # What torchtitan's selective checkpoints keep is in Execution.
        return {"recompute": "full"}
    if not text.startswith("selective"):
        return {}
    if "none" in text or "[]" in text:
        return {}
    modules = set(re.findall(r"core_attn|moe_act|mla_up_proj|layernorm|mlp|moe\b|shared_experts", text))
    if "norm,act" in text:
        modules |= {"layernorm", "moe_act"}
    return {"recompute": "selective", "recompute_modules": tuple(sorted(modules or {"core_attn"}))}


def check_ranks(plan: Plan, gpus: int) -> None:
    """Raise NotModelled if the sizes do not divide the GPUs."""
    if gpus % (plan.tensor * plan.pipeline * plan.context):
        raise NotModelled("sizes that do not divide the GPUs")
    if plan.tensor * plan.context * plan.data % (plan.expert * plan.expert_tensor):
        raise NotModelled("expert sizes that do not divide the ranks")
