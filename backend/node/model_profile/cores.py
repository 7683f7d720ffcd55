"""Attention core that replaces transformers' implementations and torch's scaled_dot_product_attention."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from .shapes import CostMeter

IMPLEMENTATIONS = ("sdpa", "flash_attention_2", "eager")


def _core(meter: CostMeter) -> Any:
    import torch

    class Core(torch.autograd.Function):  # type: ignore[misc]
        """A fused attention kernel: it saves query, key, value, output and the log-sum-exp in fp32."""

        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, pieces: Any = None) -> Any:
            batch, heads, length, _ = query.shape
            # The kernels write [batch, sequence, heads, dimension].
            out = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
            lse = query.new_empty((batch, heads, length), dtype=torch.float32)
            meter.allocated(out)
            meter.allocated(lse)
            ctx.save_for_backward(query, key, value, out, lse, *([] if mask is None else [mask]))
            ctx.pieces = pieces
            _count(query, key, value, out, 2, pieces)
            return out

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            query, key, value, out, *_ = ctx.saved_tensors
            # The backward pass computes the scores again. It has five matrix products, and the forward pass has two.
            _count(query, key, value, out, 5, ctx.pieces)
            gradients = [tensor.new_empty(tensor.shape) for tensor in (query, key, value)]
            for tensor in gradients:
                meter.allocated(tensor)
            return (*gradients, None, None)

    def _count(query: Any, key: Any, value: Any, out: Any, products: int, pieces: Any) -> None:
        batch, heads, length, width = query.shape
        key_products, value_products = (1, 1) if products == 2 else (3, 2)
        cost = meter.cost()
        pairs = length * key.shape[2] if pieces is None else sum(piece * piece for piece in pieces)
        scores = 2 * batch * heads * pairs
        cost.flops += scores * (key_products * width + value_products * value.shape[-1])
        cost.kernels += 1 if products == 2 else 3
        moved = sum(tensor.numel() * tensor.element_size() for tensor in (query, key, value, out))
        cost.moved += moved if products == 2 else 2 * moved

    return Core


@contextmanager
def attention_cores(meter: CostMeter, implementation: str) -> Iterator[None]:
    """Replace fused attention by a core that saves and computes what their kernels do. Eager runs its own code."""
    from torch.nn import functional

    core = _core(meter)
    original = functional.scaled_dot_product_attention

    def record(module: Any, query: Any, key: Any, value: Any, causal: Any, window: Any) -> None:
        if meter.events is not None:
            meter.events.attention(module, query, key, value, bool(causal), window or 0)

    def scaled(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: Any = None,
        enable_gqa: bool = False,
    ) -> Any:
        if query.dim() != 4:
            lead = 4 - query.dim()
            query, key, value = (tensor[(None,) * lead] for tensor in (query, key, value))
            return core.apply(query, key, value, attn_mask)[(0,) * lead]
        record(None, query, key, value, is_causal or attn_mask is not None, 0)
        return core.apply(query, key, value, attn_mask)

    functional.scaled_dot_product_attention = scaled
    restore = _wrap_interface(core, record)
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original
        restore()


def _wrap_interface(core: Any, record: Any) -> Any:
    """Put the core into transformers' table of attention functions. Return the function that removes it."""
    try:
        from transformers.modeling_utils import AttentionInterface
    except ImportError:
        return lambda: None
    # transformers 4 reads the table only by name.
    original = getattr(AttentionInterface, "get_interface", None)

    def get_interface(self: Any, name: str, default: Any) -> Any:
        def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **options: Any) -> Any:
            causal = options.get("is_causal")
            causal = getattr(module, "is_causal", True) if causal is None else causal
            window = options.get("sliding_window") or getattr(module, "sliding_window", None)
            # The limits of packed images. Tokens attend only to tokens of their own image.
            limits = options.get("cu_seq_lens_q")
            pieces = limits.diff().tolist() if limits is not None and not limits.is_meta else None
            record(module, query, key, value, causal, window if isinstance(window, int) else 0)
            if name == "eager":
                return default(module, query, key, value, attention_mask, **options)
            if name == "sdpa" and attention_mask is not None and key.shape[1] != query.shape[1]:
                groups = query.shape[1] // key.shape[1]
                key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
            mask = attention_mask if name == "sdpa" else None
            return core.apply(query, key, value, mask, pieces).transpose(1, 2).contiguous(), None

        return attend

    AttentionInterface.get_interface = get_interface
    by_name = AttentionInterface.__getitem__
    AttentionInterface.__getitem__ = lambda self, name: get_interface(self, name, by_name(self, name))

    def restore() -> None:
        if original is None:
            del AttentionInterface.get_interface
        else:
            AttentionInterface.get_interface = original
        AttentionInterface.__getitem__ = by_name

    return restore


def set_implementation(config: Any, name: str) -> None:
    """Set the attention of a model. transformers' own setter would check for the package of the attention."""
    config._attn_implementation_internal = name
    for key in getattr(config, "sub_configs", {}):
        part = getattr(config, key, None)
        if part is not None:
            set_implementation(part, name)
