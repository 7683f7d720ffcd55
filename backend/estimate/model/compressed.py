"""Operators of attention over compressed keys and of the streams beside it: transformers 5.19 modeling_deepseek_v4.py.

They give the parameters. The memory and the time of such a layer are not estimated
(backend/estimate/memory/engine_memory.py).
"""

from backend.job.model.compressed_shape import CompressedAttention, Compressor, EntryIndexer
from backend.job.model.operators import Attention, Linear, Norm, Operator, Parameters, Streams
from backend.job.model.shape import LayerShape


def compressed_attention(attention: CompressedAttention, hidden: int) -> tuple[Operator, ...]:
    """Return DeepseekV4Attention."""
    heads, d, rank = attention.heads, attention.head_dim, attention.q_lora
    grouped = attention.groups * attention.o_lora
    return (
        Linear(name="q_down", inputs=hidden, outputs=rank, share="whole", after_norm=True),
        Norm(width=rank, parameters=rank),
        Linear(name="q_up", inputs=rank, outputs=heads * d, share="split"),
        Linear(name="kv_proj", inputs=hidden, outputs=d, share="whole", after_norm=True, beside=True),
        Norm(width=d, parameters=d),
        Parameters(count=heads, share="split"),
        *(_compressor(attention.compressor, hidden) if attention.compressor else ()),
        *(_indexer(attention.indexer, rank, hidden) if attention.indexer else ()),
        Attention(heads=heads, kv_heads=1, key_dim=d, value_dim=d, stores_scores=True, masked=attention.masked),
        Linear(name="o_a_proj", inputs=heads * d // attention.groups, outputs=grouped, share="split"),
        Linear(name="o_b_proj", inputs=grouped, outputs=hidden, share="split"),
    )


def _compressor(compressor: Compressor, hidden: int, *, untrained: bool = False) -> tuple[Operator, ...]:
    """Return DeepseekV4CSACompressor or DeepseekV4HCACompressor without its indexer: keys, the weights of their mean
    with a bias of each place, and a norm."""
    width = compressor.width * (2 if compressor.overlaps else 1)
    return (
        *(
            Linear(name=name, inputs=hidden, outputs=width, share="whole", after_norm=True, beside=True,
                   untrained=untrained)
            for name in ("kv_proj", "gate_proj")
        ),
        Parameters(count=compressor.rate * width + compressor.width, share="whole"),
    )  # fmt: skip


def _indexer(indexer: EntryIndexer, rank: int, hidden: int) -> tuple[Operator, ...]:
    """Return DeepseekV4Indexer."""
    heads, width = indexer.heads, indexer.heads * indexer.compressor.width
    return (
        *_compressor(indexer.compressor, hidden, untrained=True),
        Linear(name="q_b_proj", inputs=rank, outputs=width, share="whole", untrained=True),
        Linear(name="weights_proj", inputs=hidden, outputs=heads, share="whole", untrained=True),
    )


def connected(kind: LayerShape, hidden: int) -> tuple[Operator, ...]:
    """Return the mean of the streams that attention or FFN reads, the weights of its output for each stream, and the
    matrix that mixes the streams (DeepseekV4HyperConnection); without this matrix modeling_hy_v4.py
    HYV4HyperConnection. Each of them has a scale."""
    n, scales = kind.streams, 2 + kind.mixes_streams
    weights = (2 + n * kind.mixes_streams) * n
    return (Streams(step="mix", width=hidden, copies=n, parameters=weights * (n * hidden + 1) + scales),)


def collapsed(kind: LayerShape, hidden: int) -> tuple[Operator, ...]:
    """Return the mean of the streams after the last layer (DeepseekV4HyperHead)."""
    n = kind.streams
    if kind.streams_averaged:
        return (Streams(step="mix", width=hidden, copies=n),)
    return (Streams(step="mix", width=hidden, copies=n, parameters=n * (n * hidden + 1) + 1),)
