"""Operators of layers that mix tokens without softmax: linear attention, state spaces and short convolutions."""

from collections.abc import Mapping

from backend.job.model.attention_shape import ConvolvedAttention
from backend.job.model.linear_shape import GatedDeltaNet, LightningAttention, ShortConvolution, StateSpace
from backend.job.model.operators import Attention, Keep, Linear, Mixing, Norm, Operator, Parameters, Recurrence

SCAN_CHUNK = 2048
"""Tokens after which Mamba 1's kernel keeps a state (state-spaces/mamba @e9594ce1c732 csrc/selective_scan/
selective_scan.cpp)."""


def gated_delta_net(net: GatedDeltaNet, hidden: int) -> tuple[Operator, ...]:
    """Return the linear attention of transformers' modeling_qwen3_next.py; its norm has one weight per value channel
    of a head, and a gate."""
    if net.decays_channels:
        return _kimi_delta_attention(net, hidden)
    keys, values = net.key_heads * net.key_dim, net.value_heads * net.value_dim
    projections = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * net.value_heads}
    if not net.joined:
        projections = {
            "in_proj_qkv": 2 * keys + values,
            "in_proj_z": values,
            "in_proj_b": net.value_heads,
            "in_proj_a": net.value_heads,
        }
    return (
        *_projected(projections, hidden),
        _recurrence(net),
        Norm(width=values, parameters=net.value_dim, heads=True),
        # The gate of the norm, and the gated output that the next projection reads.
        Keep(width=2 * values, split=True),
        Linear(name="out_proj", inputs=values, outputs=hidden, share="split"),
    )


def lightning_attention(attention: LightningAttention, hidden: int, *, megatron: bool = False) -> tuple[Operator, ...]:
    """Return the linear attention of inclusionAI/Ring-V2.5 models/modeling_bailing_moe_v2_5.py; without `megatron` for
    its parameters alone."""
    width, head_dim = attention.heads * attention.head_dim, attention.head_dim
    norms = (Norm(width=2 * width, parameters=2 * head_dim, heads=True),) if attention.normed else ()
    norm: tuple[Operator, ...] = (Norm(width=width, parameters=width),)
    if megatron:
        norm = _lightning_core(attention)
    return (
        Linear(name="qkv", inputs=hidden, outputs=3 * width, share="split", parts=3, after_norm=True),
        *norms,
        *norm,
        Linear(name="g_proj", inputs=hidden, outputs=width, share="split", after_norm=True),
        Linear(name="o", inputs=width, outputs=hidden, share="split"),
    )


def _lightning_core(attention: LightningAttention) -> tuple[Operator, ...]:
    """Return the recurrence, the norm of its output and the gate of mcore-bridge 1.6.5 model/gpts/bailing_hybrid.py
    LinearAttention.

    The recurrence saves queries, keys and values, the decay of every head, and its output in fp32 (flash-linear-
    attention @07815769467e fla/ops/common/fused_recurrent.py FusedRecurrentFunction). Every TP rank gathers the whole
    output and norms it in fp32. The gate saves the normed output and the sigmoid, and the next projection the product.
    benchmarks/lightning_attention.py counted the sum on the real module.
    """
    width, heads, d = attention.heads * attention.head_dim, attention.heads, attention.head_dim
    whole: tuple[Operator, ...] = tuple(
        part
        for gathered in (False, True)
        for part in (
            Keep(width=width, bytes=4, gathered=gathered),
            Keep(width=width, gathered=gathered, weight_only=True),
        )
    )
    return (
        Mixing(
            name="recurrence",
            parameters=0,
            # The decay, the outer product of key and value, its addition, and the product with the query.
            flops=5 * width * d,
            saved_bytes=2 * 3 * width + 4 * width + 2 * heads,
            # It writes an fp32 output for every 64 channels of keys, and adds them up.
            moved_bytes=2 * 3 * width + 4 * width * (2 * -(-d // 64) + 1) + 2 * width,
            kernels=3,
        ),
        Parameters(count=width, share="whole"),
        *whole,
        Keep(width=2 * width, split=True),
        Keep(width=width, split=True, weight_only=True),
    )


def convolved_attention(attention: ConvolvedAttention, hidden: int) -> tuple[Operator, ...]:
    """Return the attention of transformers 5.19 modeling_zaya.py: convolutions with biases, and a scale of every key
    head. Both convolutions keep their input; the norms keep queries and keys, and the scales keep keys."""
    heads, d = attention.heads, attention.head_dim
    queries, keys = heads * d, attention.kv_heads * d
    channels = queries + keys
    widths = {"q_proj": queries, "k_proj": keys, "v_proj_current": keys // 2, "v_proj_delayed": keys // 2}
    return (
        *(
            Linear(name=name, inputs=hidden, outputs=width, share="split", bias=width * attention.bias, after_norm=True)
            for name, width in widths.items()
        ),
        Mixing(
            name="convolutions",
            parameters=channels * (attention.channel_tokens + d * attention.head_tokens + 2) + attention.kv_heads,
            flops=2 * channels * (attention.channel_tokens + d * attention.head_tokens),
            saved_bytes=2 * (2 * channels + queries + 2 * keys),
            # Counted operation by operation: the convolutions with their padding, the residual path, norms and scales.
            moved_bytes=40 * channels,
            kernels=24,
        ),
        Attention(heads=heads, kv_heads=attention.kv_heads, key_dim=d, value_dim=d, window=attention.window),
        Linear(name="o", inputs=queries, outputs=hidden, share="split", whole_bias=hidden * attention.bias),
    )


def _kimi_delta_attention(net: GatedDeltaNet, hidden: int) -> tuple[Operator, ...]:
    """Return the linear attention of transformers 5.19 modeling_kimi_linear.py KimiLinearDeltaAttention, or of Ling 3
    (5.24 modeling_bailing_hybrid.py), which has no projections of low rank. The norm is computed and gated in fp32."""
    keys, values = net.key_heads * net.key_dim, net.value_heads * net.value_dim
    projections = {"q_proj": keys, "k_proj": keys, "v_proj": values}
    low_rank: tuple[Operator, ...] = ()
    if net.rank:
        projections |= {"f_a_proj": net.rank, "b_proj": net.value_heads, "g_a_proj": net.rank}
        low_rank = (
            Keep(width=2 * net.rank),
            Linear(name="f_b_proj", inputs=net.rank, outputs=keys, share="split"),
            Linear(name="g_b_proj", inputs=net.rank, outputs=values, share="split"),
        )
    else:
        projections |= {"f_proj": keys, "b_proj": net.value_heads, "g_proj": values}
    return (
        *_projected(projections, hidden),
        *low_rank,
        _recurrence(net),
        Norm(width=values, parameters=net.value_dim, heads=True, in_fp32=True),
        # Both factors of the gated output, and the output that the next projection reads.
        Keep(width=2 * values, bytes=4, split=True),
        Keep(width=values, split=True),
        Linear(name="o_proj", inputs=values, outputs=hidden, share="split"),
    )


def _projected(outputs: Mapping[str, int], hidden: int) -> tuple[Operator, ...]:
    """Return the projections of a layer's input, by name."""
    return tuple(
        Linear(name=name, inputs=hidden, outputs=width, share="split", after_norm=True)
        for name, width in outputs.items()
    )


def _recurrence(net: GatedDeltaNet) -> Recurrence:
    return Recurrence(
        key_heads=net.key_heads,
        value_heads=net.value_heads,
        key_dim=net.key_dim,
        value_dim=net.value_dim,
        convolution=net.convolution,
        decays_channels=net.decays_channels,
    )


def state_space(space: StateSpace, hidden: int) -> tuple[Operator, ...]:
    """Return a Mamba layer, with the kernels of mamba_ssm and causal_conv1d."""
    return _second(space, hidden) if space.heads else _first(space, hidden)


def _second(space: StateSpace, hidden: int) -> tuple[Operator, ...]:
    """Return Mamba 2 (transformers' modeling_bamba.py and others of its form).

    The fused kernel saves its whole input, the scan's output and the statistics of its norm, and computes the rest
    again (mamba_ssm/ops/triton/ssd_combined.py MambaSplitConv1dScanCombinedFn @e9594ce1c732). Its products in a chunk:
    C x B of every group, this x the inputs of every head, and the states in and out.
    """
    n, h, groups = space.inner, space.heads, space.groups
    shared = 2 * groups * space.state
    channels, projected = n + shared, 2 * n + shared + h
    flops = 2 * channels * space.convolution + 2 * space.chunk * (groups * space.state + n) + 4 * n * space.state
    mixing = Mixing(
        name="state_space",
        parameters=channels * (space.convolution + space.convolution_bias) + 3 * h + n * space.normed,
        flops=flops,
        saved_bytes=2 * (projected + n) + 4 * groups * space.normed,
        # The convolution, the states of a chunk in fp32 and 16 bits, the scan and the norm read and write in turn.
        moved_bytes=2 * (2 * channels + projected + 4 * n) + 6 * n * space.state / space.chunk,
        kernels=7,
    )
    return (_linear("in_proj", hidden, projected, space, after_norm=True), mixing, _out(space, hidden))


def _first(space: StateSpace, hidden: int) -> tuple[Operator, ...]:
    """Return Mamba 1 (transformers' modeling_jamba.py, modeling_falcon_mamba.py).

    The kernel saves its inputs, its output before the gate and a state in fp32 for every 2,048 tokens
    (mamba_ssm/ops/selective_scan_interface.py SelectiveScanFn @e9594ce1c732).
    """
    n, state, rank = space.inner, space.state, space.rank
    small = rank + 2 * state
    mixing = Mixing(
        name="state_space",
        parameters=n * (space.convolution + space.convolution_bias + state + 1),
        # Per channel and element of the state: decay, input, sum and output.
        flops=2 * n * space.convolution + 9 * n * state,
        saved_bytes=2 * (6 * n + small) + 8 * n * state / SCAN_CHUNK,
        moved_bytes=2 * (8 * n + 2 * small),
        kernels=4,
    )
    norm = (Norm(width=small, parameters=small, heads=True),) if space.normed else ()
    return (
        _linear("in_proj", hidden, 2 * n, space, after_norm=True),
        Linear(name="x_proj", inputs=n, outputs=small, share="split"),
        *norm,
        Linear(name="dt_proj", inputs=rank, outputs=n, share="split", bias=n),
        mixing,
        _out(space, hidden),
    )


def short_convolution(convolution: ShortConvolution, hidden: int) -> tuple[Operator, ...]:
    """Return the convolution of transformers' modeling_lfm2.py. Its two gates, the convolution's input and output and
    the gated output are saved."""
    mixing = Mixing(
        name="short_convolution",
        parameters=hidden * (convolution.convolution + convolution.bias),
        flops=2 * hidden * convolution.convolution,
        saved_bytes=2 * 6 * hidden,
        # Two products of two tensors, the convolution, and a copy of the output.
        moved_bytes=2 * 10 * hidden,
        kernels=4,
    )
    bias = convolution.bias
    return (
        Linear(
            name="in_proj", inputs=hidden, outputs=3 * hidden, share="split", bias=3 * hidden * bias, after_norm=True
        ),
        mixing,
        Linear(name="out_proj", inputs=hidden, outputs=hidden, share="split", whole_bias=hidden * bias),
    )


def _linear(name: str, inputs: int, outputs: int, space: StateSpace, *, after_norm: bool = False) -> Linear:
    bias = outputs if space.bias else 0
    return Linear(name=name, inputs=inputs, outputs=outputs, share="split", bias=bias, after_norm=after_norm)


def _out(space: StateSpace, hidden: int) -> Linear:
    bias = hidden if space.bias else 0
    return Linear(name="out_proj", inputs=space.inner, outputs=hidden, share="split", whole_bias=bias)
