"""Stand-ins on CPU for Liger's kernels, which hold the tensors that the kernels hold (see kernel_memory.py).

They were read from https://github.com/linkedin/Liger-Kernel v0.8.2.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor


def install(model: torch.nn.Module) -> None:
    """Let the RMSNorms and the SwiGLUs of a model run the stand-ins of Liger."""
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm"):
            vars(module)["forward"] = partial(_liger_norm, module)
        elif name.endswith("MLP"):
            vars(module)["forward"] = partial(_liger_mlp, module)


def _liger_norm(module: Any, x: Tensor) -> Tensor:
    output: Tensor = _LigerNorm.apply(x, module.weight)
    return output


def _liger_mlp(module: Any, x: Tensor) -> Any:
    return module.down_proj(_LigerSwiglu.apply(module.gate_proj(x), module.up_proj(x)))


class _LigerNorm(torch.autograd.Function):
    """ops/rms_norm.py LigerRMSNormFunction: the gradient of the input overwrites that of the output. The kernel runs
    without autocast, and its output has the type of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, torch.zeros(x.shape[:-1], dtype=torch.float32))
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        _, weight, _ = ctx.saved_tensors
        return gradient.zero_(), torch.zeros_like(weight) if ctx.needs_input_grad[1] else None


class _LigerSwiglu(torch.autograd.Function):
    """ops/swiglu.py LigerSiLUMulFunction: the gradients of both inputs overwrite them."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return torch.zeros_like(gate)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return gate.detach().zero_(), up.detach().zero_()
