"""Bytes per token that one layer keeps for its backward pass, from its operators.

There are two implementations: Transformer Engine's fused modules (`fused_bytes`) and Hugging Face's modules
(eager_activations.py). The fused sums were compared with published B200 runs (benchmarks/accuracy.py), and the eager
sums with the tensors that torch's autograd saves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from backend.estimate.array_ops import Number
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.memory.eager_activations import EagerForm, altup_bytes, recurrence_bytes
from backend.estimate.model.layers import LayerKind
from backend.job.memory_traits import Fp8
from backend.job.model.operators import (
    Activation,
    AltUp,
    Attention,
    ChosenKeys,
    Dispatch,
    Keep,
    Linear,
    Mixing,
    Norm,
    Recurrence,
)

Spread = Literal["whole", "split", "groups", "routed", "dispatched", "gathered"]


@frozen_dataclass
class SavedBytes:
    """Bytes per token of one layer, by their distribution over ranks. Context parallelism, which divides all, is not
    included."""

    whole: Number = 0.0
    """Divided by TP only with sequence parallelism."""
    split: Number = 0.0
    """Divided by TP."""
    groups: Number = 0.0
    """Keys and values: divided by TP, but with at least one head per rank."""
    routed: Number = 0.0
    """Bytes of tokens at their experts, distributed like `whole`. EP does not divide them, because each rank has its
    own tokens."""
    dispatched: Number = 0.0
    """Copies that are sent to the experts, like `routed`. Each of the ETP ranks holds all of them."""
    gathered: Number = 0.0
    """What sequence parallelism would split, and one rank holds for the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Item:
    spread: Spread
    bytes: float
    dropped_by: tuple[str, ...] = ()
    """The recompute modules that do not keep it."""
    weight_only: bool = False
    """Only the gradient of a weight needs it: it is not kept if the weight is frozen."""


@lru_cache(maxsize=1024)
def fused_bytes(
    kind: LayerKind,
    recomputed: tuple[str, ...] = (),
    trained: bool = True,
    context_a2a: bool = False,
    fp8: Fp8 | None = None,
) -> SavedBytes:
    """Return the saved bytes under Transformer Engine with flash attention, in bf16 or fp16; `fp8`: how the inputs of
    linear modules are saved in 8 bits."""
    items = _items(kind, context_a2a, fp8)
    return _sum(item for item in items if (trained or not item.weight_only) and not {*item.dropped_by} & {*recomputed})


@lru_cache(maxsize=1024)
def recomputed_bytes(kind: LayerKind, recomputed: tuple[str, ...], fp8: Fp8 | None = None) -> SavedBytes:
    """Return the bytes that the recomputed modules of one layer restore during its backward pass."""
    return _sum(item for item in _items(kind, False, fp8) if {*item.dropped_by} & {*recomputed})


def _items(kind: LayerKind, context_a2a: bool, fp8: Fp8 | None) -> Iterator[_Item]:
    saved = fp8.input_bytes if fp8 else 2
    for operator, after in zip(kind.operators, (*kind.operators[1:], None), strict=True):
        if isinstance(operator, Norm):
            yield from _norm_items(operator, saved, in_mlp=isinstance(after, Linear) and after.name == "up")
        elif isinstance(operator, Attention):
            yield from _attention_items(operator, context_a2a, copied=bool(fp8 and fp8.copies_attention))
        elif isinstance(operator, ChosenKeys):
            # Projected queries, and the output of all heads, which the next projection reads; the core's own tensors
            # are in megatron_sparse.py.
            projected = 2 * operator.heads * (operator.plain + operator.rotary)
            yield _Item(spread="split", bytes=projected, dropped_by=("mla_up_proj",))
            yield _Item(spread="split", bytes=2 * operator.heads * operator.value_dim, weight_only=True)
        elif isinstance(operator, Activation):
            yield from _activation_items(operator, saved)
        elif isinstance(operator, Dispatch):
            bytes_sent = saved * operator.top_k * operator.hidden
            yield _Item(spread="dispatched", bytes=bytes_sent, dropped_by=("moe",), weight_only=True)
            yield _Item(spread="routed", bytes=8 * operator.experts, dropped_by=("moe",))
        elif isinstance(operator, Keep):
            spread: Spread = "split" if operator.split else "gathered" if operator.gathered else "whole"
            yield _Item(spread=spread, bytes=operator.bytes * operator.width, weight_only=operator.weight_only)
        elif isinstance(operator, Recurrence):
            yield _Item(spread="split", bytes=recurrence_bytes(operator))
        elif isinstance(operator, Mixing):
            yield _Item(spread="split", bytes=operator.saved_bytes)
        elif isinstance(operator, AltUp):
            # No Megatron engine trains such a model; these are the bytes of transformers' modules.
            yield _Item(spread="whole", bytes=operator.width * altup_bytes(operator, EagerForm()))


def _norm_items(norm: Norm, saved: float, *, in_mlp: bool) -> Iterator[_Item]:
    """Yield the input, and the output, which the next projection needs for the gradient of its weight.

    In FP8 it is in 8 bits if the norm is part of the projection. After a separate norm, two projections of latent
    attention save a copy each, and router and shared experts the 16-bit output (megatron-core 0.16.1
    transformer/moe/shared_experts.py set_save_original_input).
    """
    if norm.heads:
        yield _Item(spread="groups" if norm.of_keys else "split", bytes=2 * norm.width)
        return
    # mcore's `mlp` recompute includes the fused norm; `layernorm` affects only norms that are separate modules.
    dropped = ("mlp",) if in_mlp else ("layernorm",) if norm.detached else ()
    yield _Item(spread="whole", bytes=2 * norm.width)
    if norm.is_joined:
        return
    output = 2 if norm.detached else saved
    yield _Item(spread="whole", bytes=output * norm.width, dropped_by=dropped, weight_only=True)


def _attention_items(attention: Attention, context_a2a: bool, *, copied: bool) -> Iterator[_Item]:
    """Yield query, key, value, output, and softmax statistics in fp32. An all-to-all for CP keeps the output twice.
    `copied`: the next projection saves a copy in 8 bits."""
    up = ("mla_up_proj",) if attention.latent else ()
    outputs = 2 * attention.heads * attention.value_dim
    keys = 2 * attention.kv_heads * (attention.key_dim + attention.value_dim)
    yield _Item(spread="split", bytes=2 * attention.heads * attention.key_dim, dropped_by=up)
    if not attention.borrows_keys:
        yield _Item(spread="groups", bytes=keys, dropped_by=up)
    yield _Item(spread="split", bytes=outputs * (2 if context_a2a else 1))
    yield _Item(spread="split", bytes=4 * attention.heads, dropped_by=("core_attn",))
    if copied:
        yield _Item(spread="split", bytes=outputs / 2, weight_only=True)


def _activation_items(activation: Activation, saved: float) -> Iterator[_Item]:
    """Yield the input, and the output, which the down-projection needs for the gradient of its weight.

    Without a fused kernel, the product of both halves saves the function's output, and the other half with an offset
    (megatron-core 0.16.1 transformer/mlp.py glu).
    """
    modules = {"mlp": ("mlp",), "shared_experts": ("shared_experts", "moe"), "moe": ("moe",)}[activation.module]
    recomputed_output = (*modules, "moe_act") if activation.module == "moe" else modules
    spread: Spread = "routed" if activation.module == "moe" else "split"
    halves = (2 if activation.gated else 1) + (2 if activation.gelu else 0)
    yield _Item(spread=spread, bytes=2 * activation.width * halves, dropped_by=modules)
    yield _Item(spread=spread, bytes=saved * activation.width, dropped_by=recomputed_output, weight_only=True)


def _sum(items: Iterator[_Item]) -> SavedBytes:
    sums: dict[str, float] = {}
    for item in items:
        sums[item.spread] = sums.get(item.spread, 0.0) + item.bytes
    return SavedBytes(**sums)
