"""The layers of a model, from its shape: the operators of each kind of layer, in Megatron's form."""

from functools import lru_cache

from backend.estimate.model.layers import (
    Activation,
    Attention,
    Dispatch,
    Keep,
    LayerKind,
    Linear,
    ModelLayers,
    Norm,
    Operator,
    VisionLayers,
)
from backend.job.model import ModelShape, VisionShape


@lru_cache(maxsize=256)
def model_layers(shape: ModelShape) -> ModelLayers:
    """Return the layers of a model of this shape."""
    attention = _latent_attention(shape) if shape.mla else _attention(shape)
    h = shape.hidden
    dense_count = shape.dense_layers if shape.experts else shape.layers
    dense = LayerKind(name="dense", hidden=h, operators=(*attention, *_mlp(shape)))
    sparse = None
    if shape.experts:
        buffer = shape.experts if shape.router_bias else 0
        sparse = LayerKind(name="sparse", hidden=h, operators=(*attention, *_experts(shape)), buffer=buffer)
    head = Linear(name="output", inputs=h, outputs=shape.vocab, share="split", after_norm=True)
    return ModelLayers(
        embedding=shape.vocab * h,
        dense=dense,
        dense_count=min(dense_count, shape.layers),
        sparse=sparse,
        sparse_count=max(shape.layers - dense_count, 0) if shape.experts else 0,
        output=LayerKind(name="output", hidden=h, operators=(Norm(width=h, parameters=h, cast=not shape.gated), head)),
        tied=shape.tied,
        vision=_vision(shape.vision) if shape.vision else None,
    )


def _attention(shape: ModelShape) -> tuple[Operator, ...]:
    h, d = shape.hidden, shape.head_dim
    queries, keys = shape.heads * d, shape.kv_heads * d
    projected = queries + 2 * keys
    bias = projected if shape.attention_bias else 0
    head_norm = (Norm(width=queries + keys, parameters=2 * d, heads=True),) if shape.qk_norm else ()
    return (
        Norm(width=h, parameters=h, cast=not shape.gated),
        Linear(name="qkv", inputs=h, outputs=projected, share="split", bias=bias, parts=3, after_norm=True),
        *head_norm,
        Attention(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            key_dim=d,
            value_dim=d,
            window=shape.window,
            windowed=shape.windowed,
        ),
        Linear(name="o", inputs=queries, outputs=h, share="split", whole_bias=h if shape.output_bias else 0),
    )


def _latent_attention(shape: ModelShape) -> tuple[Operator, ...]:
    """Return DeepSeek's attention; Megatron keeps its down-projections whole on every TP rank."""
    mla, h, a = shape.mla, shape.hidden, shape.heads
    if mla is None:
        raise ValueError("a model without MLA")
    key = mla.nope_dim + mla.rope_dim
    query: tuple[Operator, ...] = (
        Linear(name="q_down", inputs=h, outputs=mla.q_lora, share="whole", after_norm=True),
        Norm(width=mla.q_lora, parameters=mla.q_lora),
        Linear(name="q_up", inputs=mla.q_lora, outputs=a * key, share="split"),
    )
    if not mla.q_lora:
        query = (Linear(name="q", inputs=h, outputs=a * key, share="split", after_norm=True),)
    return (
        Norm(width=h, parameters=h, detached=True, cast=not shape.gated),
        *query,
        Linear(name="kv_down", inputs=h, outputs=mla.kv_lora + mla.rope_dim, share="whole", after_norm=True),
        Norm(width=mla.kv_lora, parameters=mla.kv_lora),
        Keep(width=mla.rope_dim),
        Linear(name="kv_up", inputs=mla.kv_lora, outputs=a * (mla.nope_dim + mla.value_dim), share="split"),
        Attention(heads=a, kv_heads=a, key_dim=key, value_dim=mla.value_dim, latent=True),
        Linear(name="o", inputs=a * mla.value_dim, outputs=h, share="split"),
    )


def _mlp(shape: ModelShape) -> tuple[Operator, ...]:
    h, f, parts = shape.hidden, shape.ffn, 2 if shape.gated else 1
    return (
        Norm(width=h, parameters=h, cast=not shape.gated),
        Linear(name="up", inputs=h, outputs=parts * f, share="split", parts=parts, after_norm=True),
        Activation(width=f, gated=shape.gated, module="mlp"),
        Linear(name="down", inputs=f, outputs=h, share="split"),
    )


def _experts(shape: ModelShape) -> tuple[Operator, ...]:
    h, f, parts = shape.hidden, shape.expert_ffn, 2 if shape.gated else 1
    count, k = shape.experts, shape.top_k
    shared: tuple[Operator, ...] = ()
    if shape.shared_ffn:
        gate = (Linear(name="shared_gate", inputs=h, outputs=1, share="whole"),) if shape.shared_gate else ()
        shared = (
            *gate,
            Linear(name="shared_up", inputs=h, outputs=parts * shape.shared_ffn, share="split", parts=parts),
            Activation(width=shape.shared_ffn, gated=shape.gated, module="shared_experts"),
            Linear(name="shared_down", inputs=shape.shared_ffn, outputs=h, share="split"),
        )
    return (
        Norm(width=h, parameters=h, detached=True, cast=not shape.gated),
        Linear(name="router", inputs=h, outputs=count, share="whole"),
        Dispatch(hidden=h, top_k=k, experts=count),
        Linear(
            name="expert_up",
            inputs=h,
            outputs=parts * f,
            share="expert",
            bias=parts * f if shape.expert_bias else 0,
            copies=count,
            active=k,
            parts=parts,
        ),
        Activation(width=k * f, gated=shape.gated, module="moe", clamped=shape.clamped),
        Linear(
            name="expert_down",
            inputs=f,
            outputs=h,
            share="expert",
            bias=h if shape.expert_bias else 0,
            copies=count,
            active=k,
        ),
        *shared,
    )


def _vision(vision: VisionShape) -> VisionLayers:
    """Return the vision tower of transformers' modeling_qwen3_vl.py, modeling_qwen2_5_vl.py or modeling_qwen2_vl.py."""
    h, f = vision.hidden, vision.ffn
    merged = h * vision.merge**2
    pixels = vision.channels * vision.temporal_patch * vision.patch**2
    parts = 2 if vision.gated else 1
    block = (
        _vision_norm(vision, h),
        Linear(name="qkv", inputs=h, outputs=3 * h, share="whole", bias=3 * h, after_norm=True),
        Attention(
            heads=vision.heads,
            kv_heads=vision.heads,
            key_dim=h // vision.heads,
            value_dim=h // vision.heads,
            causal=False,
            packed=True,
        ),
        Linear(name="proj", inputs=h, outputs=h, share="whole", bias=h),
        _vision_norm(vision, h),
        Linear(name="up", inputs=h, outputs=parts * f, share="whole", bias=parts * f, parts=parts, after_norm=True),
        Activation(width=f, gated=vision.gated, module="mlp"),
        Linear(name="down", inputs=f, outputs=h, share="whole", bias=h),
    )
    patch_bias = h if vision.patch_bias else 0
    embedding = Linear(name="patch", inputs=pixels, outputs=h, share="whole", bias=patch_bias, after_norm=True)
    return VisionLayers(
        patch_embedding=LayerKind(name="patch_embedding", hidden=h, operators=(embedding,)),
        positions=vision.positions * h,
        block=LayerKind(name="vision", hidden=h, operators=block),
        depth=vision.depth,
        merger=_merger(vision, merged, _vision_norm(vision, h, per_token=vision.merge**2)),
        deep_stack_merger=_merger(vision, merged, _vision_norm(vision, merged)),
        deep_stack=vision.deep_stack,
    )


def _vision_norm(vision: VisionShape, width: int, per_token: int = 1) -> Norm:
    """Return a norm of the tower; `per_token` patches of `width` each make one merged token."""
    parameters = width if vision.gated else 2 * width
    return Norm(width=width * per_token, parameters=parameters, layer_norm=not vision.gated)


def _merger(vision: VisionShape, merged: int, norm: Norm) -> LayerKind:
    operators = (
        norm,
        Linear(name="merge_in", inputs=merged, outputs=merged, share="whole", bias=merged, after_norm=True),
        Activation(width=merged, gated=False, module="mlp"),
        Linear(name="merge_out", inputs=merged, outputs=vision.out, share="whole", bias=vision.out),
    )
    return LayerKind(name="merger", hidden=merged, operators=operators)
