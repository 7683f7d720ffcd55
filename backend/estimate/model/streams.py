"""Operators of residual streams and n-grams (Qwen4). They are those of transformers 5.19 modeling_qwen4_exp.py."""

from backend.job.model.attention_shape import BlockIndexer
from backend.job.model.operators import BlockScores, Keep, Linear, Norm, Operator, Parameters, Streams
from backend.job.model.shape import LayerShape, Ngrams

MIXERS = ("input_mix_weight_down", "input_mix_weight_up")
"""The projections of a mean of the streams. That after the last layer has adapters too."""


def mixed(kind: LayerShape, hidden: int, *, adds: bool = True) -> tuple[Operator, ...]:
    """Return the gated mean of the streams that attention or FFN reads (Qwen4ExpTextGatedResidual), and with `adds` the
    weights by which its output is added to each stream."""
    n, rank = kind.streams, kind.stream_rank
    wide = n * hidden
    added = (Linear(name="block_inject_weight", inputs=wide, outputs=n, share="whole", after_norm=True, beside=True),)
    return (
        Norm(width=wide, parameters=wide, in_fp32=True),
        Linear(name=MIXERS[0], inputs=wide, outputs=rank, share="whole", after_norm=True),
        # The function's input, and its output, which the next projection reads.
        Keep(width=rank),
        Keep(width=rank, weight_only=True),
        Linear(name=MIXERS[1], inputs=rank, outputs=wide, share="whole"),
        Streams(step="mix", width=hidden, copies=n),
        *(added if adds else ()),
    )


def added(kind: LayerShape, hidden: int) -> tuple[Operator, ...]:
    """Return the addition of an output to each stream."""
    return (Streams(step="add", width=hidden, copies=kind.streams),)


def ngrams(kind: LayerShape, grams: Ngrams, hidden: int) -> tuple[Operator, ...]:
    """Return the embedding of n-grams, gated by the streams and added to them (Qwen4ExpTextPLELayer)."""
    wide = kind.streams * hidden
    norm = Norm(width=wide, parameters=wide, in_fp32=True)
    return (
        Parameters(count=grams.table, share="whole", looked_up=True),
        Linear(name="key_proj", inputs=grams.width, outputs=wide, share="whole", after_norm=True),
        Linear(name="value_proj", inputs=grams.width, outputs=hidden, share="whole", after_norm=True, beside=True),
        *(norm,) * grams.norms,
        Streams(
            step="ngrams",
            width=hidden,
            copies=kind.streams,
            parameters=wide * grams.convolution,
            convolution=grams.convolution,
        ),
    )


def block_indexer(indexer: BlockIndexer, hidden: int, heads: int) -> tuple[Operator, ...]:
    """Return what chooses blocks of keys for attention with so many heads: queries and one key head, each with a norm.
    They have one projection (Qwen4ExpTextQSAIndexer), or two (5.19 modeling_minimax_m3_vl.py MiniMaxM3VLIndexer)."""
    d = indexer.head_dim
    widths = {"index_qk_proj": (indexer.heads + 1) * d}
    if indexer.masks_heads:
        widths = {"q_proj": indexer.heads * d, "k_proj": d}
    return (
        *(
            Linear(name=name, inputs=hidden, outputs=width, share="whole", untrained=True)
            for name, width in widths.items()
        ),
        Parameters(count=2 * d, share="whole"),
        BlockScores(
            heads=indexer.heads, key_dim=d, block=indexer.block, masked_heads=heads if indexer.masks_heads else 0
        ),
    )
