"""The layers of a model, from its shape: the operators of each kind of layer, in Megatron's form."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from backend.estimate.memory.eager_activations import EagerForm, eager_bytes
from backend.estimate.model.attention import full_attention, latent_attention
from backend.estimate.model.chosen_keys import chosen_keys_attention
from backend.estimate.model.compressed import collapsed, compressed_attention, connected, spread
from backend.estimate.model.cross_attention import cross_attention, cross_keys
from backend.estimate.model.gemma import after_layers, before_layers, correct, laurel, per_layer_gate, predict
from backend.estimate.model.layers import LayerKind, ModelLayers
from backend.estimate.model.mixers import (
    convolved_attention,
    gated_delta_net,
    lightning_attention,
    short_convolution,
    state_space,
)
from backend.estimate.model.streams import added, mixed, ngrams
from backend.estimate.model.vision_layers import vision_layers
from backend.job.model.attention_shape import ConvolvedAttention, FullAttention, Mla
from backend.job.model.compressed_shape import CompressedAttention
from backend.job.model.linear_shape import GatedDeltaNet, LightningAttention, StateSpace
from backend.job.model.operators import (
    WEIGHTS,
    Activation,
    Attention,
    Dispatch,
    Keep,
    Linear,
    Norm,
    Operator,
    Parameters,
)
from backend.job.model.shape import Experts, Ffn, LayerShape, ModelShape


@lru_cache(maxsize=256)
def model_layers(shape: ModelShape, megatron: bool = False, mtp: int = 0) -> ModelLayers:
    """Return the layers of a model of this shape, with `mtp` layers for multi-token prediction; `megatron` if
    Megatron-Core builds them. Then only the chosen experts compute in a model whose class in transformers computes all
    of them (Experts.dense), and attention over chosen keys has another form."""
    if mtp:
        layers = model_layers(shape, megatron)
        kind = _mtp_layer(layers.kinds[layers.order[-1]], shape)
        return replace(layers, kinds=(*layers.kinds, kind), mtp=mtp)
    h, last = shape.hidden, shape.kinds[shape.order[-1]]
    head = Linear(
        name="output",
        inputs=h,
        outputs=shape.vocab,
        share="split",
        bias=shape.vocab if shape.head_bias else 0,
        after_norm=True,
    )
    stem = before_layers(last, shape.layers, h, megatron=megatron)
    kinds = tuple(_layer(kind, h, megatron=megatron) for kind in shape.kinds)
    layer_inputs = last.per_layer * shape.layers if megatron else 0
    # Megatron-Core builds MTP layers only if a job asks for them.
    own = shape.own_mtp and not megatron
    return ModelLayers(
        embedding=shape.vocab * h,
        positions=shape.positions * h + (0 if layer_inputs else shape.other),
        layer_inputs=layer_inputs,
        kinds=kinds,
        order=shape.order,
        output=LayerKind(name="output", hidden=h, operators=(*_end(last, h), head)),
        stem=LayerKind(name="stem", hidden=h, operators=stem) if stem else None,
        tied=shape.tied,
        softcap=shape.softcap,
        fp32_residual=shape.fp32_residual,
        bare_embedding_norm=shape.bare_embedding_norm,
        vision=vision_layers(shape.vision) if shape.vision else None,
        beside=(_mtp_layer(kinds[shape.order[-1]], shape), shape.own_mtp) if own else None,
    )


def _end(last: LayerShape, hidden: int) -> tuple[Operator, ...]:
    """Return what runs between the last layer and the output projection."""
    if last.streams and last.stream_rank:
        return mixed(last, hidden, adds=False)
    if last.streams:
        return (*collapsed(last, hidden), _norm(last, hidden))
    return (*after_layers(last, hidden), _norm(last, hidden))


def _layer(kind: LayerShape, hidden: int, *, megatron: bool) -> LayerKind:
    moe = kind.ffn if isinstance(kind.ffn, Experts) else None
    if kind.operators:
        return _profiled(kind, hidden)
    operators = (
        *(ngrams(kind, kind.ngrams, hidden) if kind.ngrams else ()),
        *predict(kind, hidden),
        *_part(
            kind,
            (*laurel(kind, hidden), *_attention(kind, hidden, megatron=megatron)),
            hidden,
            detached=isinstance(kind.attention, Mla),
        ),
        *_part(kind, _feed_forward(kind.ffn, hidden, megatron=megatron), hidden, detached=moe is not None, second=True),
        *(_expert_norms(kind, hidden) if kind.expert_norms else ()),
        *correct(kind, hidden),
        *per_layer_gate(kind, hidden, megatron=megatron),
        *((Parameters(count=kind.other, share="whole"),) if kind.other else ()),
        # What the weights multiply: the residual stream and what is added to it, each twice.
        *((Keep(width=4 * hidden, is_residual=True, weight_only=True),) if kind.scales_residual else ()),
    )
    if kind.modules:
        operators = tuple(_named(operator, dict(kind.modules)) for operator in operators)
    buffer = moe.count if moe and moe.router_bias else 0
    # The layer's embedding, and the copies of the hidden state.
    inputs = kind.per_layer + max(kind.altup - 1, kind.streams - 1, 0) * hidden
    return LayerKind(
        name="sparse" if moe else "dense",
        hidden=hidden,
        operators=operators,
        inputs=inputs,
        buffer=buffer,
        of_images=cross_keys(kind.attention, hidden),
    )


def _named(operator: Operator, modules: Mapping[str, tuple[str, ...]]) -> Operator:
    """Return a projection with the names of its modules, if they are not those of Llama, or the attention between."""
    if isinstance(operator, Attention):
        return replace(operator, joined=len(modules.get("qkv", ())) == 1)
    if not isinstance(operator, Linear) or operator.name not in modules:
        return operator
    names = modules[operator.name]
    return replace(operator, modules=names, parts=len(names))


def _mtp_layer(last: LayerKind, shape: ModelShape) -> LayerKind:
    """Return the layer for multi-token prediction of a model with this last decoder layer.

    megatron-core 0.16.1 transformer/multi_token_prediction.py: norms of the embedding of the next token and of the
    hidden state; a projection of both to one, whose output is gathered over TP and split again by sequence parallel as
    a view of the whole; the decoder's last kind of layer; a norm before the output layer.
    """
    h, norm = shape.hidden, _norm(shape.kinds[shape.order[-1]], shape.hidden)
    joined = Linear(name="eh_proj", inputs=2 * h, outputs=h, share="split", after_norm=True)
    operators = (norm, norm, joined, Keep(width=h, gathered=True), *last.operators, norm)
    return LayerKind(name="mtp", hidden=h, operators=operators, buffer=last.buffer)


def _part(
    kind: LayerShape, part: tuple[Operator, ...], hidden: int, *, detached: bool, second: bool = False
) -> tuple[Operator, ...]:
    """Return the attention or the FFN of a layer with its norms; nothing if the layer lacks it."""
    if not part:
        return ()
    if kind.streams and kind.stream_rank:
        return (*mixed(kind, hidden), *part, *added(kind, hidden))
    if kind.streams:
        return (*connected(kind, hidden), _norm(kind, hidden, detached=detached), *part, *spread(kind, hidden))
    before = kind.norms in ("before", "both") or (kind.norms == "shared" and not second)
    after = kind.norms in ("after", "both") or (second and kind.ffn_norm)
    gated = before and kind.norm_gate and not (second and isinstance(kind.ffn, Ffn))
    return (
        *((_norm(kind, hidden, detached=detached),) if before else ()),
        *(_norm_gate(kind.norm_gate, hidden) if gated else ()),
        *part,
        # The residual stream takes its output, so no projection keeps it.
        *((replace(_norm(kind, hidden), is_joined=True),) if after else ()),
        *((Keep(width=hidden, bytes=1),) if kind.dropout else ()),
    )


def _expert_norms(kind: LayerShape, hidden: int) -> tuple[Operator, ...]:
    """Return the norms of experts beside a dense FFN (transformers 5.6.0 modeling_gemma4.py Gemma4TextDecoderLayer)."""
    norm = _norm(kind, hidden)
    return (norm, norm, norm, replace(norm, parameters=0))


def _norm_gate(rank: int, hidden: int) -> tuple[Operator, ...]:
    """Return the gate of a norm's output, which is computed from this output (transformers 5.19 modeling_axk2.py
    AXK2GatedRMSNorm)."""
    return (
        Linear(name="fc1", inputs=hidden, outputs=rank, share="whole", after_norm=True),
        # The function's input, and its output, which the next projection reads.
        Keep(width=rank),
        Keep(width=rank, weight_only=True),
        Linear(name="fc2", inputs=rank, outputs=hidden, share="whole"),
        Keep(width=hidden, bytes=4),
        Keep(width=hidden, is_residual=True),
    )


def _profiled(kind: LayerShape, hidden: int) -> LayerKind:
    """Return a kind of layer of a profile. What it saves beyond its operators is kept without a name."""
    name = "sparse" if isinstance(kind.ffn, Experts) else "dense"
    known = LayerKind(name=name, hidden=hidden, operators=kind.operators)
    form = EagerForm()
    unknown = round((kind.saved_bytes - eager_bytes(known, form)) / form.element)
    if unknown <= 0:
        return known
    return LayerKind(name=name, hidden=hidden, operators=(*kind.operators, Keep(width=unknown)))


def _norm(kind: LayerShape, hidden: int, *, detached: bool = False) -> Norm:
    """Return a norm of the residual stream."""
    return Norm(
        width=hidden,
        parameters=hidden * WEIGHTS[kind.norm],
        detached=detached,
        in_fp32=kind.fp32_norms,
        layer_norm=kind.norm == "scale_and_shift",
        centred=kind.norm == "centred_scale",
        cast=kind.ffn is not None and not kind.ffn.gated and kind.norm == "scale",
    )


def _attention(kind: LayerShape, hidden: int, *, megatron: bool) -> tuple[Operator, ...]:
    attention = kind.attention
    beside = state_space(kind.beside, hidden) if kind.beside else ()
    if isinstance(attention, FullAttention) and attention.cross:
        return cross_attention(attention, hidden)
    if isinstance(attention, FullAttention):
        return (*beside, *full_attention(attention, hidden, in_fp32=kind.fp32_norms, megatron=megatron))
    if isinstance(attention, Mla):
        is_absorbed = megatron and attention.masked
        if is_absorbed:
            return chosen_keys_attention(attention, hidden)
        return latent_attention(attention, hidden, megatron=megatron)
    if isinstance(attention, CompressedAttention):
        return compressed_attention(attention, hidden)
    if isinstance(attention, ConvolvedAttention):
        return convolved_attention(attention, hidden)
    if isinstance(attention, LightningAttention):
        return lightning_attention(attention, hidden, megatron=megatron)
    if isinstance(attention, GatedDeltaNet):
        return gated_delta_net(attention, hidden)
    if isinstance(attention, StateSpace):
        return state_space(attention, hidden)
    return short_convolution(attention, hidden) if attention else ()


def _feed_forward(ffn: Ffn | Experts | None, h: int, *, megatron: bool) -> tuple[Operator, ...]:
    if isinstance(ffn, Experts):
        return _experts(ffn, h, megatron=megatron)
    return _ffn(ffn, h) if ffn else ()


def _ffn(ffn: Ffn, h: int) -> tuple[Operator, ...]:
    f, parts = ffn.width, 2 if ffn.gated else 1
    return (
        Linear(
            name="up",
            inputs=h,
            outputs=parts * f,
            share="split",
            bias=parts * f if ffn.bias else 0,
            parts=parts,
            after_norm=True,
        ),
        Activation(
            width=f,
            gated=ffn.gated,
            module="mlp",
            clamped=ffn.clamped,
            clamps_output=ffn.clamps_output,
            clamps_silu=ffn.clamps_silu,
            unfused=ffn.unfused,
            xielu=ffn.xielu,
            sparse=ffn.sparse,
            gelu=ffn.gelu,
        ),
        Linear(name="down", inputs=f, outputs=h, share="split", whole_bias=h if ffn.bias else 0),
    )


def _experts(moe: Experts, h: int, *, megatron: bool) -> tuple[Operator, ...]:
    f, parts, count = moe.width, 2 if moe.gated else 1, moe.count
    k = moe.count if moe.dense and not megatron else moe.top_k
    return (
        *_router(moe, h),
        Dispatch(
            hidden=h,
            top_k=k,
            experts=count,
            fp32_routing=moe.fp32_routing,
            single=moe.single,
            fetched=(parts + 1) * count if moe.single and not moe.leaf else 0,
        ),
        Linear(
            name="expert_up",
            inputs=h,
            outputs=parts * f,
            share="expert",
            bias=parts * f if moe.bias else 0,
            copies=count,
            active=k,
            parts=parts,
            single=moe.single,
        ),
        Activation(
            width=k * f,
            gated=moe.gated,
            module="moe",
            clamped=moe.clamped,
            clamps_output=moe.clamps_output,
            clamps_silu=moe.clamps_silu,
            single=moe.single,
        ),
        Linear(
            name="expert_down",
            inputs=f,
            outputs=h,
            share="expert",
            bias=h if moe.bias else 0,
            copies=count,
            active=k,
            single=moe.single,
        ),
        *_shared_experts(moe, h),
    )


def _shared_experts(moe: Experts, h: int) -> tuple[Operator, ...]:
    """Return the experts that compute every token, with their gate; nothing if the layer has none."""
    if not moe.shared_width:
        return ()
    parts = 2 if moe.gated else 1
    return (
        Linear(
            name="shared_up", inputs=h, outputs=parts * moe.shared_width, share="split", parts=parts, after_norm=True
        ),
        Activation(
            width=moe.shared_width,
            gated=moe.gated,
            module="shared_experts",
            gelu=moe.gelu,
            clamped=moe.shared_clamped,
            clamps_output=moe.clamps_output,
            clamps_silu=moe.clamps_silu,
        ),
        Linear(name="shared_down", inputs=moe.shared_width, outputs=h, share="split"),
        *(_shared_gate(h) if moe.shared_gate else ()),
    )


def _router(moe: Experts, h: int) -> tuple[Operator, ...]:
    if moe.router_rank:
        return _deep_router(moe, h)
    return (
        Linear(
            name="router",
            inputs=h,
            outputs=moe.count,
            share="whole",
            bias=moe.count if moe.bias else 0,
            after_norm=True,
            beside=bool(moe.shared_width),
            casts_input=moe.fp32_router,
        ),
    )


def _deep_router(moe: Experts, h: int) -> tuple[Operator, ...]:
    """Return ZayaRouter (transformers 5.19 modeling_zaya.py). Both functions keep their input, and the next projections
    their outputs. The weights of the states of the router before keep those."""
    rank = moe.router_rank
    return (
        Linear(name="down", inputs=h, outputs=rank, share="whole", bias=rank, after_norm=True),
        Norm(width=rank, parameters=rank),
        Linear(name="fc1", inputs=rank, outputs=rank, share="whole", bias=rank),
        Linear(name="fc2", inputs=rank, outputs=rank, share="whole", bias=rank),
        Linear(name="out_proj", inputs=rank, outputs=moe.count + 1, share="whole"),
        Keep(width=2 * rank),
        Keep(width=3 * rank, weight_only=True),
    )


def _shared_gate(h: int) -> tuple[Operator, ...]:
    """Return the gate of the shared experts, which multiplies their output (modeling_qwen2_moe.py; Megatron-Core
    transformer/moe/shared_experts.py)."""
    gate = Linear(name="shared_gate", inputs=h, outputs=1, share="whole", after_norm=True, beside=True)
    return gate, Keep(width=h)
