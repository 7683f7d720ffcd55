"""Fields of a published row of memory, in the types of the estimate."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backend.estimate.memory.stage import Trained
from backend.job.memory_traits import MemoryTraits
from backend.job.traits import TRAITS
from benchmarks.shapes import NotModelled


def reference(row: Mapping[str, Any]) -> str:
    return str(row.get("source_ref") or "")


def needed(row: Mapping[str, Any], key: str) -> int:
    """Return a size. Raises NotModelled if it is missing."""
    value = row.get(key)
    if value is None:
        raise NotModelled(f"not published: {key}")
    if isinstance(value, bool) or int(value) != value or value < 0:
        raise NotModelled(f"a field that cannot be read: {key}")
    return int(value)


def recompute(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recompute fields of a Plan."""
    text = str(row.get("recompute") or "none")
    if text.startswith("full"):
        units = re.search(r"(\d+) layers a unit", text)
        return {"recompute": "full", **({"recompute_layers": int(units[1])} if units else {})}
    modules = tuple(re.findall(r"core_attn|moe_act|mla_up_proj|layernorm|mlp|moe\b|shared_experts", text))
    if text.startswith("selective"):
        chosen = modules or (() if "[]" in text else ("core_attn",))
        return {"recompute": "selective" if chosen else "none", "recompute_modules": chosen}
    return {}


def trained(method: str) -> Trained:
    """Return the trained parts. ms-swift freezes the vision tower and its projector by default."""
    tower, merger = "freeze_vit=false" in method, "freeze_aligner=false" in method
    return Trained(language="freeze_llm=true" not in method, tower=tower, merger=merger, deep_stack=merger)


def sequences(method: str) -> int:
    """Return the sequences of a sample.

    A pack holds whole pairs. A pair that is longer than a pack is a pack of its own, and both answers may have
    max_length tokens (ms-swift swift/template/base.py _rlhf_encode, swift/dataset/packing.py create_packed_idx).
    """
    return 2 if "rlhf_type=dpo" in method else 1


def rank(method: str) -> int:
    match = re.search(r"lora_rank=(\d+)", method)
    return int(match[1]) if match else 8


def targets(method: str) -> str:
    """Return the names of the projections with adapters, or "all"."""
    match = re.search(r"target_modules=(\S+)", method)
    return match[1] if match and "_" in match[1] else "all"


def traits(engine: str) -> MemoryTraits:
    """Return the memory traits of an engine that the product plans."""
    memory = TRAITS[engine].memory
    if memory is None:
        raise NotModelled(f"engine: {engine}")
    return memory


def stated_bytes(row: Mapping[str, Any], memory: MemoryTraits) -> MemoryTraits:
    """Return the traits with the bytes that the row takes from its source's code.

    `logits_bytes` are those of a logit in the loss, forward and backward; `state_bytes` those of a weight, of its
    gradient and of its optimizer state.
    """
    if row.get("logits_bytes"):
        forward, backward = row["logits_bytes"]
        memory = replace(memory, logits_forward_bytes=forward, logits_backward_bytes=backward)
    if row.get("state_bytes"):
        weight, gradient, optimizer = row["state_bytes"]
        memory = replace(memory, weight_bytes=weight, gradient_bytes=gradient, optimizer_bytes=optimizer)
    return memory
