"""Bytes read and written by the operations of real modules, and their count: norms, rotations, adapters, experts.

    .venv-node/bin/python -m benchmarks.moved_bytes

Every operation that torch dispatches, forward and backward, reads its inputs and writes its outputs. Views move
nothing, and start no kernel. Prints JSON:

- "rms_norm": [forward, backward] bytes per element;
- "rms_norm_started", "rope_started": [forward, backward] operations, the backward ones for the gradients of inputs;
- "adapter": {form: [inputs, outputs, inputs in backward, outputs in backward]} in bytes per element of the projection's
  input and output, then [forward, backward] operations, all without those of the frozen projection;
- "altup": {copies: {step, or "sparse" for the sparse activation: bytes and operations, each forward and backward}};
- "experts": {number: operations in forward and backward};
- "experts_moved": bytes as in operator_kernels.GROUPED_MOVED.

Needs the node environment (torch, transformers, peft). The forms of bitsandbytes are missing because they need a GPU.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TOKENS = 512
RANK = 4
SIZES = (1024, 2048)

Counted = tuple["Moved", "Moved"]
"""Forward and backward."""


class Moved(TorchDispatchMode):
    """Sum of the bytes of every operation, and their count."""

    total = 0.0
    started = 0
    products = 0.0
    """The part of matrix products in the total."""

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operation, and run it."""
        outputs = function(*args, **(kwargs or {}))
        if not _is_view(function, tree_leaves((args, kwargs)), tree_leaves(outputs)):
            moved = sum(map(_stored, tree_leaves((args, kwargs, outputs))))
            self.total += moved
            self.products += moved if "mm" in str(function) else 0.0
            self.started += 1
        return outputs


def _is_view(function: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Return whether an operation only describes memory, or reserves it."""
    known = {leaf.untyped_storage().data_ptr() for leaf in inputs if isinstance(leaf, torch.Tensor)}
    made = {leaf.untyped_storage().data_ptr() for leaf in outputs if isinstance(leaf, torch.Tensor)}
    return "empty" in str(function) or (made <= known and not function._schema.is_mutable)


def _stored(leaf: Any) -> float:
    """Return the bytes of a tensor. An expanded tensor is stored once."""
    if not isinstance(leaf, torch.Tensor):
        return 0.0
    return float(min(leaf.numel() * leaf.element_size(), leaf.untyped_storage().nbytes()))


def counted(module: Callable[[torch.Tensor], torch.Tensor], inputs: int, *, autocast: bool = False) -> Counted:
    """Return the work of one call on 16-bit activations that need a gradient, and of its backward."""
    leaf = torch.randn(1, TOKENS, inputs, dtype=torch.bfloat16, requires_grad=True)
    entering = leaf.view(1, TOKENS, inputs)
    with Moved() as forward, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        outputs = module(entering)
    ones = torch.ones_like(outputs)
    with Moved() as backward:
        outputs.backward(ones)
    return forward, backward


def rms_norm() -> list[float]:
    """Return the bytes per element of transformers' own norm."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    size = SIZES[0]
    moved = counted(LlamaRMSNorm(size).to(torch.bfloat16), size)
    return [work.total / TOKENS / size for work in moved]


def rms_norm_started() -> list[int]:
    """Return the operations of transformers' own norm whose weight is frozen."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm = LlamaRMSNorm(SIZES[0]).to(torch.bfloat16).requires_grad_(requires_grad=False)
    return [work.started for work in counted(norm, SIZES[0])]


def rope_started() -> list[int]:
    """Return the operations of transformers' rotary embedding of queries and keys."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    angles = torch.randn(1, TOKENS, 64, dtype=torch.bfloat16)

    def embed(entering: torch.Tensor) -> torch.Tensor:
        queries, keys = entering.view(1, TOKENS, 2, 8, 64).transpose(1, 3).unbind(2)
        return torch.stack(apply_rotary_pos_emb(queries, keys, angles, angles))

    # Of these, one operation joins the two results, and one the two gradients.
    return [work.started - 1 for work in counted(embed, SIZES[0])]


def altup(copies: int) -> dict[str, list[float]]:
    """Return the work of AltUp's steps and of the sparse activation in Gemma 3n, without norms and projections: bytes
    per element of the hidden state or of the FFN's width, then operations, each forward and backward."""
    from transformers import Gemma3nTextConfig
    from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextAltUp, Gemma3nTextMLP

    size = SIZES[0]
    config = Gemma3nTextConfig(
        hidden_size=size, num_hidden_layers=1, altup_num_inputs=copies, activation_sparsity_pattern=[0.95]
    )
    block = Gemma3nTextAltUp(config).to(torch.bfloat16).requires_grad_(requires_grad=False)
    coefficients = torch.randn(1, TOKENS, copies, dtype=torch.bfloat16, requires_grad=True)
    block.compute_router_modalities = lambda _: coefficients.view(1, TOKENS, copies)

    def streams(entering: torch.Tensor) -> torch.Tensor:
        return entering.view(1, TOKENS, copies, size).permute(2, 0, 1, 3)

    activated = torch.randn(1, TOKENS, size, dtype=torch.bfloat16, requires_grad=True)

    def correct(entering: torch.Tensor) -> torch.Tensor:
        # The gate's result is added to all copies but the first (Gemma3nTextDecoderLayer.forward).
        corrected = block.correct(streams(entering), activated.view(1, TOKENS, size))
        gated = block.scale_corrected_output(corrected[0].clone())
        corrected[1:] += gated
        return corrected

    def scaled(copy: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
        own = torch.sqrt(torch.maximum(torch.mean(copy**2, dim=-1, keepdim=True), torch.tensor(1e-5)))
        return copy * magnitude / own

    def ends(entering: torch.Tensor) -> torch.Tensor:
        first, *others = streams(entering).unbind(0)
        magnitude = torch.mean(first**2, dim=-1, keepdim=True) ** 0.5
        return torch.stack([first, *(scaled(copy, magnitude) for copy in others)])

    steps = {
        "enter": ends,
        "predict": lambda entering: block.predict(streams(entering)),
        "correct": correct,
        "leave": lambda entering: torch.mean(ends(entering), dim=0),
    }
    results = {}
    for name, step in steps.items():
        works = counted(step, copies * size)
        results[name] = [work.total / TOKENS / size for work in works] + [work.started for work in works]
    mlp = Gemma3nTextMLP(config)
    works = counted(mlp._gaussian_topk, size)
    return results | {"sparse": [work.total / TOKENS / size for work in works] + [work.started for work in works]}


def adapter(dtype: torch.dtype, *, autocast: bool) -> list[float]:
    """Return the bytes per element and the operations of PEFT's adapter on a frozen 16-bit projection."""
    from peft.tuners.lora.layer import Linear

    def extra(inputs: int, outputs: int) -> list[float]:
        base = torch.nn.Linear(inputs, outputs, bias=False).to(torch.bfloat16).requires_grad_(requires_grad=False)
        frozen = counted(base, inputs, autocast=autocast)
        adapted = Linear(base, "default", r=RANK, lora_alpha=1, lora_dropout=0.0)
        adapted.lora_A.to(dtype)
        adapted.lora_B.to(dtype)
        with_adapter = counted(adapted, inputs, autocast=autocast)
        extra_bytes = [more.total - less.total for more, less in zip(with_adapter, frozen, strict=True)]
        return extra_bytes + [more.started - less.started for more, less in zip(with_adapter, frozen, strict=True)]

    small, large = SIZES
    least, wide, tall = extra(small, small), extra(large, small), extra(small, large)
    bytes_ = [more - less for side in range(2) for more, less in ((wide[side], least[side]), (tall[side], least[side]))]
    return [value / TOKENS / (large - small) for value in bytes_] + least[2:]


def experts(number: int) -> int:
    """Return the operations of a block of experts, in forward and backward."""
    block = _experts(SIZES[0], 8, number, 2)
    with Moved() as moved:
        block(torch.randn(1, TOKENS, SIZES[0], dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    return moved.started


def _experts(hidden: int, width: int, number: int, top_k: int) -> torch.nn.Module:
    from transformers import Qwen3MoeConfig, Qwen3MoeModel

    config = Qwen3MoeConfig(
        hidden_size=hidden, moe_intermediate_size=width, num_experts=number, num_experts_per_tok=top_k,
        num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=8, vocab_size=8,
    )  # fmt: skip
    return Qwen3MoeModel(config).to(torch.bfloat16).layers[0].mlp


def experts_moved() -> dict[str, list[float]]:
    """Return the bytes of a block of experts beside its products, by what they grow with: forward and backward."""

    def moved(hidden: int, width: int, top_k: int) -> list[float]:
        return [work.total - work.products for work in counted(_experts(hidden, width, 8, top_k), hidden)]

    def growth(top_k: int) -> list[float]:
        """Return the bytes per element of the hidden state, for all copies of a token."""
        large, small = moved(SIZES[1], 64, top_k), moved(SIZES[0], 64, top_k)
        return [(more - less) / TOKENS / (SIZES[1] - SIZES[0]) for more, less in zip(large, small, strict=True)]

    of_two, of_four = growth(2), growth(4)
    copy = [(four - two) / 2 for four, two in zip(of_four, of_two, strict=True)]
    token = [two - 2 * each for two, each in zip(of_two, copy, strict=True)]
    wide, narrow = moved(SIZES[0], 1024, 2), moved(SIZES[0], 512, 2)
    function = [(more - less) / TOKENS / 2 / 512 for more, less in zip(wide, narrow, strict=True)]
    return {"copy": copy, "token": token, "function": function}


if __name__ == "__main__":
    forms = {"plain": (torch.bfloat16, False), "upcast": (torch.float32, True)}
    adapters = {name: adapter(dtype, autocast=cast) for name, (dtype, cast) in forms.items()}
    blocks = {number: experts(number) for number in (8, 64)}
    started = {"rms_norm_started": rms_norm_started(), "rope_started": rope_started()}
    copies = {number: altup(number) for number in (2, 4)}
    of_experts = {"experts": blocks, "experts_moved": experts_moved()}
    print(json.dumps({"rms_norm": rms_norm(), **started, "adapter": adapters, **of_experts, "altup": copies}))
