"""Operators of layers whose attention reads images, in transformers' modeling_mllama.py: those that run for every token
of the sequence, and those that run for every vector of the images.

A layer of this kind always runs. LLaMA-Factory 0.9.5 adds a white picture to a batch without images, for which the
tower and these layers do the work of any other picture (data/collator.py MultiModalDataCollatorForSeq2Seq.__call__).
transformers alone would skip the layers.
"""

from backend.estimate.model.layers import LayerKind
from backend.job.model.attention_shape import FullAttention
from backend.job.model.operators import Attention, Keep, Linear, Mixing, Norm, Operator
from backend.job.model.shape import Mixer


def cross_attention(attention: FullAttention, hidden: int) -> tuple[Operator, ...]:
    """Return the operators for every token, with the gates of attention and FFN."""
    d = attention.head_dim
    queries = attention.heads * d
    return (
        Linear(name="q", inputs=hidden, outputs=queries, share="split", after_norm=True),
        Norm(width=queries, parameters=d, heads=True),
        Attention(heads=attention.heads, kv_heads=attention.kv_heads, key_dim=d, value_dim=d, causal=False, cross=True),
        Linear(name="o", inputs=queries, outputs=hidden, share="split"),
        # Two products with a gate, and one with the mask of tokens that see no image.
        Mixing(name="gates", parameters=2, flops=0.0, saved_bytes=0.0, moved_bytes=12.0 * hidden, kernels=5),
        Keep(width=2 * hidden, weight_only=True),
    )


def cross_keys(attention: Mixer | None, hidden: int) -> LayerKind | None:
    """Return the operators for every vector of the images; None if the attention reads none.

    With a mask, transformers repeats keys and values for every query head (integrations/sdpa_attention.py).
    """
    if not isinstance(attention, FullAttention) or not attention.cross:
        return None
    d, keys = attention.head_dim, attention.kv_heads * attention.head_dim
    operators = (
        Linear(name="cross_kv", inputs=hidden, outputs=2 * keys, share="split", parts=2),
        Norm(width=keys, parameters=d, heads=True),
        Keep(width=2 * attention.heads * d, split=True),
    )
    return LayerKind(name="keys", hidden=hidden, operators=operators)
