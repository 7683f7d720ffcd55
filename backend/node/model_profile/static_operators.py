"""Operators that are read from the modules of a layer, without running the layer."""

from __future__ import annotations

from typing import Any


def static_operators(layer: Any, group: str) -> list[dict[str, Any]]:
    """Return the projections and norms of a layer that could not run, in the order of their definition."""
    operators = []
    for path, module in layer.named_modules():
        weight = getattr(module, "weight", None)
        if weight is None or any(True for _ in module.children()):
            continue
        if "norm" in type(module).__name__.lower():
            operators.append(
                {"type": "Norm", "width": weight.numel(), "parameters": sum(p.numel() for p in module.parameters())}
            )
        elif weight.dim() == 2:
            bias = getattr(module, "bias", None)
            operators.append(
                {
                    "type": "Linear",
                    "name": path.rpartition(".")[2],
                    "inputs": weight.shape[1],
                    "outputs": weight.shape[0],
                    "share": "split" if group == "language" else "whole",
                    "bias": 0 if bias is None else bias.numel(),
                }
            )
    return operators


def recurrence(module: Any, parameters: int) -> dict[str, Any] | None:
    """Return the operator of a gated delta net (Qwen3-Next), or None for another module."""
    names = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "conv_kernel_size")
    sizes = [getattr(module, name, None) for name in names]
    if not all(isinstance(size, int) for size in sizes):
        return None
    fields = ("key_heads", "value_heads", "key_dim", "value_dim", "convolution")
    operator = {"type": "Recurrence", **dict(zip(fields, sizes))}
    return operator if recurrence_parameters(operator) == parameters else None


def recurrence_parameters(operator: dict[str, Any]) -> int:
    """Return the weights of the convolution, and the decay and the step bias of every value head."""
    keys, values = operator["key_heads"] * operator["key_dim"], operator["value_heads"] * operator["value_dim"]
    return int((2 * keys + values) * operator["convolution"] + 2 * operator["value_heads"])
