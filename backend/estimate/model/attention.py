"""Operators of attention with softmax: with keys and values of every head, or of a low rank (MLA)."""

from backend.estimate.model.streams import block_indexer
from backend.job.model.attention_shape import FullAttention, Indexer, Mla
from backend.job.model.operators import Attention, IndexScores, Keep, Linear, Norm, Operator, Parameters


def full_attention(
    attention: FullAttention, hidden: int, *, in_fp32: bool, megatron: bool = False
) -> tuple[Operator, ...]:
    """Return attention over the whole sequence or a window; `in_fp32`: as in Norm; `megatron`: as in model_layers."""
    d, width_of_values = attention.head_dim, attention.value_dim or attention.head_dim
    queries, keys = attention.heads * d, attention.kv_heads * d
    parts = {"all": 3, "keys": 2, "queries": 1}[attention.projects]
    projected = queries * (2 if attention.gate == "query" else 1)
    projected += keys * (parts > 1) + attention.kv_heads * width_of_values * (parts > 2)
    head_norm: tuple[Operator, ...] = ()
    own_module = megatron and attention.gate == "own"
    if attention.qk_norm != "none":
        width = queries + (keys if parts > 1 else 0)
        parameters = {"heads": d * min(parts, 2), "whole": width, "bare": 0}[attention.qk_norm]
        values = keys * attention.value_norm
        head_norm = (Norm(width=width + values, parameters=parameters, heads=True, in_fp32=in_fp32),)
        # mcore-bridge's norms without weights save their input in fp32.
        head_norm += (Keep(width=width, split=True),) if own_module else ()
        if megatron and values:
            head_norm = (
                Norm(width=queries, parameters=d, heads=True, in_fp32=in_fp32),
                Norm(width=keys + 2 * values, parameters=d, heads=True, of_keys=True, in_fp32=in_fp32),
            )
    sinks = (Parameters(count=attention.heads, share="split"),) if attention.sinks else ()
    return (
        Linear(
            name="qkv" if parts > 1 else "q",
            inputs=hidden,
            outputs=projected,
            share="split",
            bias=projected if attention.bias else 0,
            parts=parts,
            after_norm=True,
        ),
        *head_norm,
        *sinks,
        *(block_indexer(attention.indexer, hidden, attention.heads) if attention.indexer else ()),
        # With a mask transformers repeats keys and values for every query head (integrations/sdpa_attention.py).
        *((Keep(width=2 * (queries - keys), split=True),) if attention.masked else ()),
        Attention(
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            key_dim=d,
            value_dim=width_of_values,
            window=attention.window,
            borrows_keys=megatron and parts == 1,
            stores_scores=attention.stores_scores,
            sinks=attention.sinks,
            rounds_softmax=attention.rounds_softmax,
            softcap=attention.softcap,
            masked=attention.masked,
            mask_heads=attention.heads if attention.indexer and attention.indexer.masks_heads else 1,
        ),
        *(_gate_of_bridge(attention, hidden) if own_module else _gate(attention, hidden)),
        Linear(
            name="o",
            inputs=attention.heads * width_of_values,
            outputs=hidden,
            share="split",
            whole_bias=hidden if attention.output_bias else 0,
        ),
    )


def _gate(attention: FullAttention, hidden: int) -> tuple[Operator, ...]:
    """Return the gate of the attention's output. It is read again for its own gradient and that of the output."""
    queries, heads = attention.heads * attention.head_dim, attention.heads
    if attention.gate == "none":
        return ()
    if attention.gate == "query":
        return (Keep(width=2 * queries, split=True),)
    outputs = queries if attention.gate == "own" else heads
    projection = Linear(name="gate_proj", inputs=hidden, outputs=outputs, share="split", after_norm=True)
    return (projection, Keep(width=queries + outputs, split=True))


def _gate_of_bridge(attention: FullAttention, hidden: int) -> tuple[Operator, ...]:
    """Return the gate of mcore-bridge 1.6.5 model/mm_gpts/muse_glimmer.py MuseGlimmerSelfAttention.

    A norm in fp32 computes its input anew: it saves its input, and for its weight what the weight multiplies. The
    projection saves its 16-bit input. The sigmoid saves its output in fp32. The product saves this in 16 bits, and the
    attention's output, which is counted there. The next projection saves the product. benchmarks/separate_gate.py
    counted the sum on the real module.
    """
    queries = attention.heads * attention.head_dim
    return (
        Keep(width=hidden, bytes=4),
        Keep(width=hidden, bytes=4, weight_only=True),
        Keep(width=hidden, weight_only=True),
        Linear(name="gate_proj", inputs=hidden, outputs=queries, share="split", after_norm=True),
        Keep(width=queries, bytes=4, split=True),
        Keep(width=queries, split=True),
        Keep(width=queries, split=True, weight_only=True),
    )


def latent_attention(mla: Mla, h: int, *, megatron: bool = False) -> tuple[Operator, ...]:
    """Return DeepSeek's attention; Megatron keeps its down-projections whole on every TP rank.

    In transformers the value is a view of the up-projection's output, which therefore stays allocated. Megatron keeps
    the rotary key. That the norms' outputs are kept for the up-projections, fused_bytes counts with the norms.
    """
    key, a = mla.nope_dim + mla.rope_dim, mla.heads
    return (
        *_latent_query(mla, h, a * key, megatron=megatron),
        Linear(
            name="kv_down", inputs=h, outputs=mla.kv_lora + mla.rope_dim, share="whole", after_norm=True, beside=True
        ),
        Norm(width=mla.kv_lora, parameters=mla.kv_lora),
        Keep(width=mla.rope_dim) if megatron else Keep(width=a * mla.nope_dim),
        Linear(
            name="kv_up",
            inputs=mla.kv_lora,
            outputs=a * (mla.nope_dim + mla.value_dim),
            share="split",
            after_norm=not megatron,
        ),
        *((Parameters(count=a, share="split"),) if mla.sinks else ()),
        *(_indexer(mla.indexer, mla, h) if mla.indexer else ()),
        Attention(
            heads=a,
            kv_heads=a,
            key_dim=key,
            value_dim=mla.value_dim,
            latent=True,
            masked=mla.masked,
            sinks="fp32_logit" if mla.sinks else "",
        ),
        *_latent_gate(mla, h),
        Linear(name="o", inputs=a * mla.value_dim, outputs=h, share="split"),
    )


def _latent_query(mla: Mla, h: int, outputs: int, *, megatron: bool) -> tuple[Operator, ...]:
    """Return the projections of the queries, with the gate's if both read the same input."""
    if not mla.q_lora:
        return (Linear(name="q", inputs=h, outputs=outputs, share="split", after_norm=True),)
    down = Linear(name="q_down", inputs=h, outputs=mla.q_lora, share="whole", after_norm=True)
    norm = Norm(width=mla.q_lora, parameters=mla.q_lora)
    if mla.gate != "query":
        up = Linear(name="q_up", inputs=mla.q_lora, outputs=outputs, share="split", after_norm=not megatron)
        return (down, norm, up)
    joined = 2 * mla.q_lora
    wide = Linear(name="q_gate_proj", inputs=joined, outputs=outputs + mla.heads * mla.value_dim, share="split")
    return (down, norm, Keep(width=joined, weight_only=True), wide)


def _latent_gate(mla: Mla, h: int) -> tuple[Operator, ...]:
    """Return the gate of the attention's output, and the gated output that the next projection reads."""
    values = mla.heads * mla.value_dim
    if mla.gate == "query" and mla.q_lora:
        # The gate is in fp32.
        return (Keep(width=values, bytes=4, split=True), Keep(width=values, split=True))
    if mla.gate == "heads":
        return (Linear(name="g_proj", inputs=h, outputs=mla.heads, share="split", after_norm=True),)
    if mla.gate == "own":
        projection = Linear(name="gate_proj", inputs=h, outputs=values, share="split", after_norm=True)
        return (projection, Keep(width=2 * values, split=True))
    return ()


def _indexer(indexer: Indexer, mla: Mla, h: int) -> tuple[Operator, ...]:
    """Return what chooses the keys (transformers 5.19 modeling_deepseek_v32.py DeepseekV32Indexer): queries from the
    output of the query's down-projection, one key head with a LayerNorm, and a weight of every head."""
    heads, d = indexer.heads, indexer.head_dim
    return (
        Linear(name="wq_b", inputs=mla.q_lora, outputs=heads * d, share="whole", untrained=True),
        Linear(name="wk", inputs=h, outputs=d, share="whole", untrained=True),
        Parameters(count=2 * d + indexer.pooled * d + (h * d if indexer.pooled else 0), share="whole"),
        Linear(name="weights_proj", inputs=h, outputs=heads, share="whole", untrained=True),
        IndexScores(
            heads=heads, key_dim=d, rotary=mla.rope_dim, spreads_keys=indexer.spreads_keys, pooled=indexer.pooled
        ),
    )
