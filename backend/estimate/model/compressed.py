"""Operators of attention over compressed keys, and of hyper-connections: transformers 5.19 modeling_deepseek_v4.py."""

from backend.job.model.compressed_shape import CompressedAttention, Compressor, EntryIndexer
from backend.job.model.operators import Attention, BlockScores, Keep, Linear, Norm, Operator, Parameters, Streams
from backend.job.model.shape import LayerShape


def compressed_attention(attention: CompressedAttention, hidden: int) -> tuple[Operator, ...]:
    """Return DeepseekV4Attention."""
    heads, d, rank = attention.heads, attention.head_dim, attention.q_lora
    grouped = attention.groups * attention.o_lora
    rate = attention.compressor.rate if attention.compressor else 0
    return (
        Linear(name="q_down", inputs=hidden, outputs=rank, share="whole", after_norm=True),
        Norm(width=rank, parameters=rank),
        Linear(name="q_up", inputs=rank, outputs=heads * d, share="split"),
        # A norm without weights reads the queries in fp32, and multiplies them as they are.
        Keep(width=heads * d, bytes=4, split=True),
        Keep(width=heads * d, split=True),
        Linear(name="kv_proj", inputs=hidden, outputs=d, share="whole", after_norm=True, beside=True),
        Norm(width=d, parameters=d),
        Parameters(count=heads, share="split"),
        *(_compressor(attention.compressor, hidden) if attention.compressor else ()),
        *(_indexer(attention.indexer, rank, hidden) if attention.indexer else ()),
        # Every head of queries gets copies of the keys, one as keys and one as values.
        Keep(width=2 * (heads * d * (rate + 1) // rate - d) if rate else 2 * (heads - 1) * d, split=True),
        Attention(
            heads=heads,
            kv_heads=1,
            key_dim=d,
            value_dim=d,
            stores_scores=True,
            sinks="fp32_logit",
            masked=attention.masked,
            entry=rate,
        ),
        Linear(name="o_a_proj", inputs=heads * d // attention.groups, outputs=grouped, share="split"),
        Keep(width=grouped, split=True, weight_only=True),
        Linear(name="o_b_proj", inputs=grouped, outputs=hidden, share="split"),
    )


def _compressor(compressor: Compressor, hidden: int, *, untrained: bool = False) -> tuple[Operator, ...]:
    """Return DeepseekV4CSACompressor or DeepseekV4HCACompressor without its indexer: keys, the weights of their mean
    with a bias of each place, and a norm. An indexer's compressor keeps nothing: it has no backward pass."""
    width = compressor.width * (2 if compressor.overlaps else 1)
    places = compressor.rate * width if compressor.has_places else 0
    # The keys, their weights, and the same weights in fp32.
    kept = () if untrained else (Keep(width=2 * width), Keep(width=width, bytes=4))
    return (
        *(
            Linear(
                name=name,
                inputs=hidden,
                outputs=width,
                share="whole",
                after_norm=True,
                beside=True,
                untrained=untrained,
            )
            for name in ("kv_proj", "gate_proj")[: 1 + compressor.weighs]
        ),
        Parameters(count=places + compressor.width, share="whole"),
        *kept,
    )


def _indexer(indexer: EntryIndexer, rank: int, hidden: int) -> tuple[Operator, ...]:
    """Return DeepseekV4Indexer, or that of DeepSeek-V4.1, which projects its keys from the entries and norms them."""
    heads, width, inputs = indexer.heads, indexer.width, indexer.key_inputs
    scored = BlockScores(
        heads=heads, key_dim=width, block=indexer.compressor.rate if indexer.compressor else 1, scores_later=True
    )
    keys = (
        Linear(name="wk", inputs=inputs, outputs=width, share="whole", untrained=True),
        Parameters(count=width, share="whole"),
    )
    return (
        *(_compressor(indexer.compressor, hidden, untrained=True) if indexer.compressor else ()),
        *(keys if inputs else ()),
        Linear(name="q_b_proj", inputs=rank, outputs=heads * width, share="whole", untrained=True),
        Linear(name="weights_proj", inputs=hidden, outputs=heads, share="whole", untrained=True),
        scored,
    )


def connected(kind: LayerShape, hidden: int) -> tuple[Operator, ...]:
    """Return the mean of the streams that attention or FFN reads, the weights of its output for each stream, and the
    matrix that mixes the streams (DeepseekV4HyperConnection); without this matrix modeling_hy_v4.py
    HYV4HyperConnection. Each of them has a scale."""
    n, mixes = kind.streams, kind.stream_rounds > 0
    return (_collapse(kind, hidden, (2 + n * mixes) * n, scales=2 + mixes, rounds=kind.stream_rounds),)


def _collapse(kind: LayerShape, hidden: int, outputs: int, scales: int, rounds: int = 0) -> Streams:
    n = kind.streams
    return Streams(
        step="collapse",
        width=hidden,
        copies=n,
        parameters=outputs * (n * hidden + 1) + scales,
        outputs=outputs,
        rounds=rounds,
        norms_first=kind.stream_rounds > 0,
    )


def spread(kind: LayerShape, hidden: int) -> tuple[Operator, ...]:
    """Return the addition of an output to each stream, by weight, and the product that mixes the streams."""
    return (Streams(step="spread", width=hidden, copies=kind.streams, rounds=kind.stream_rounds),)


def collapsed(kind: LayerShape, hidden: int) -> tuple[Operator, ...]:
    """Return the mean of the streams after the last layer (DeepseekV4HyperHead)."""
    n = kind.streams
    if kind.streams_averaged:
        return (Streams(step="average", width=hidden, copies=n),)
    return (_collapse(kind, hidden, n, scales=1),)
