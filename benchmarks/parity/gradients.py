"""The squared gradient norm of a model by part, summed over the ranks. Ranks import this file; see ranks.py."""

from collections.abc import Callable
from typing import Any

import torch

PARTS = ("language", "experts", "router", "tower", "projector", "deep_stack")
_PIECES = (
    ("deepstack_merger", "deep_stack"),
    (".merger", "projector"),
    ("multi_modal_projector", "projector"),
    ("vision_model", "tower"),
    ("visual", "tower"),
    ("vision_tower", "tower"),
    (".experts", "experts"),
    (".router", "router"),
    (".mlp.gate.", "router"),
)
"""Pieces of a name in transformers or in mcore_adapter, in the order in which they decide."""


def part_of(name: str) -> str:
    return next((part for piece, part in _PIECES if piece in name), "language")


def of_torch(model: Any) -> dict[str, float]:
    """Return the squares for DDP and for FSDP, whose ranks have parts of each gradient."""
    squares, shared = dict.fromkeys(PARTS, 0.0), True
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        local = parameter.grad
        if hasattr(local, "to_local"):
            local, shared = local.to_local(), False
        squares[part_of(name)] += _square(local)
    return _summed(squares) if not shared or _is_fsdp1(model) else squares


def of_megatron(model: Any) -> dict[str, float]:
    """Return the squares for a chunk of Megatron-Core, whose gradients are in buffers. Each weight counts once."""
    from megatron.core import mpu
    from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
    from megatron.core.transformer.module import param_is_not_shared

    squares = dict.fromkeys(PARTS, 0.0)
    data_rank = mpu.get_data_parallel_rank(with_context_parallel=True)
    for name, parameter in model.named_parameters():
        if not hasattr(parameter, "main_grad") or not param_is_not_shared(parameter):
            continue
        is_expert = not getattr(parameter, "allreduce", True)
        rank = mpu.get_expert_data_parallel_rank() if is_expert else data_rank
        if rank == 0 and param_is_not_tensor_parallel_duplicate(parameter):
            squares[part_of(name)] += _square(parameter.main_grad)
    return _summed(squares)


def hook_deepspeed(keep: Callable[[dict[str, float]], None]) -> None:
    """Call `keep` with the squares before each step of DeepSpeed, which steps inside of the backward pass."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    step = DeepSpeedEngine.step

    def keep_and_step(self: Any, *arguments: Any, **options: Any) -> Any:
        self.module._zero_grad_kept = True
        keep(_of_deepspeed(self))
        return step(self, *arguments, **options)

    DeepSpeedEngine.step = keep_and_step


def _of_deepspeed(engine: Any) -> dict[str, float]:
    from deepspeed.utils import safe_get_full_grad

    squares, names = dict.fromkeys(PARTS, 0.0), {id(value): name for name, value in engine.module.named_parameters()}
    optimizer = engine.optimizer
    if engine.zero_optimization_stage() == 3:
        for name, parameter in engine.module.named_parameters():
            if parameter.requires_grad:
                squares[part_of(name)] += _square(safe_get_full_grad(parameter))
        return squares
    # safe_get_full_grad of DeepSpeed 0.18.4 takes the index in the whole group for that in the rank's own part of it.
    for group, own in optimizer.averaged_gradients.items():
        for gradient, parameter in zip(own, optimizer.params_in_partition[group], strict=False):
            squares[part_of(names[id(parameter)])] += _square(gradient)
    return _summed(squares)


def _is_fsdp1(model: Any) -> bool:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return bool(FullyShardedDataParallel.fsdp_modules(model))


def _square(tensor: Any) -> float:
    return float(tensor.detach().double().square().sum().item())


def _summed(squares: dict[str, float]) -> dict[str, float]:
    values = torch.tensor([squares[part] for part in PARTS], dtype=torch.float64)
    torch.distributed.all_reduce(values)
    return dict(zip(PARTS, values.tolist(), strict=True))
