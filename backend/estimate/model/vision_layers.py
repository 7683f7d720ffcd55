"""The layers of a vision or audio tower and of its projector."""

from backend.estimate.model.layers import LayerKind, TowerPart, VisionLayers
from backend.job.model.operators import Activation, Attention, Linear, Norm, Operator, Parameters
from backend.job.model.vision_shape import VisionShape


def vision_layers(vision: VisionShape) -> VisionLayers:
    """Return the layers of a tower: blocks of a vision transformer in transformers' modules, whole on every rank."""
    h = vision.hidden
    pixels = vision.channels * vision.temporal_patch * vision.patch**2
    patch_bias = h if vision.patch_bias else 0
    embedding = Linear(name="patch", inputs=pixels, outputs=h, share="whole", bias=patch_bias, after_norm=True)
    merged = h * vision.merge**2
    per_patch = _vision_norm(vision, h, per_token=vision.merge**2)
    main: tuple[Norm, ...] = (per_patch,) if vision.projector_norm == "patch" else ()
    if vision.projector_scale:
        width = merged if vision.projector_norm == "patch" else vision.projector[0].inputs
        main = (Norm(width=width, parameters=vision.projector_scale, layer_norm=vision.projector_scale > width),)
    return VisionLayers(
        patch_embedding=LayerKind(
            name="patch_embedding",
            hidden=h,
            operators=vision.stem or ((embedding,) if vision.depth and not vision.block else ()),
        ),
        positions=(vision.positions + vision.class_token) * h,
        blocks=_blocks(vision),
        patches_per_token=vision.image_patches / vision.keys if vision.keys else vision.patches_per_token,
        merger=_merger(vision, merged, main, vision.projector_other),
        merger_linears=vision.merger_linears,
        deep_stack_merger=_merger(vision, merged, (_vision_norm(vision, merged),)),
        deep_stack=vision.deep_stack,
        merger_layers=_merger_layers(vision),
        joins_images=vision.joins_images,
        other=vision.other,
        kept=vision.kept,
        patches_need=vision.patches_need,
    )


def _blocks(vision: VisionShape) -> tuple[TowerPart, ...]:
    """Return the blocks, with the layer that joins patches between them, if there is one."""
    h, late = vision.hidden, vision.depth - vision.joins_after
    block = LayerKind(name="vision", hidden=h, operators=vision.block or _vision_block(vision, vision.window))
    if not vision.joins_after:
        return (TowerPart(kind=block, count=vision.depth, checkpointed=vision.checkpointed),)
    late_block = LayerKind(name="vision", hidden=h, operators=_vision_block(vision, vision.window // _JOINED))
    within = LayerKind(name="vision_window", hidden=h, operators=_vision_attention(vision, _JOINED))
    joint = LayerKind(name="vision_joint", hidden=h, operators=_joint(vision))
    return (
        TowerPart(kind=block, count=vision.joins_after, checkpointed=vision.checkpointed),
        TowerPart(kind=within, count=1, checkpointed=False),
        TowerPart(kind=joint, count=1, joined=_JOINED, checkpointed=False),
        TowerPart(kind=late_block, count=late, joined=_JOINED, checkpointed=vision.checkpointed),
    )


def _merger_layers(vision: VisionShape) -> tuple[TowerPart, ...]:
    """Return the layers of the projector that gradient checkpointing recomputes, equal ones together."""
    parts = []
    for layer in dict.fromkeys(vision.projector_layers):
        kind = LayerKind(name="merger_layer", hidden=layer.hidden, operators=layer.operators, inputs=layer.inputs)
        count = vision.projector_layers.count(layer)
        parts.append(TowerPart(kind=kind, count=count, joined=vision.patches_per_token))
    return tuple(parts)


_JOINED = 4
"""Patches that become one within a tower."""


def _joint(vision: VisionShape) -> tuple[Operator, ...]:
    """Return what makes the patches of a window one (modeling_minicpmv4_6.py MiniCPMV4_6ViTWindowAttentionMerger)."""
    h, wide, width = vision.hidden, _JOINED * vision.hidden, _JOINED * vision.ffn
    return (
        _vision_norm(vision, wide),
        Linear(name="linear_1", inputs=wide, outputs=width, share="whole", bias=width, after_norm=True),
        Activation(width=width, gated=False, module="mlp"),
        Linear(name="linear_2", inputs=width, outputs=h, share="whole", bias=h),
    )


def _vision_attention(vision: VisionShape, window: int) -> tuple[Operator, ...]:
    h, d = vision.hidden, vision.hidden // vision.heads
    keys = (vision.kv_heads or vision.heads) * d
    return (
        _vision_norm(vision, h),
        Linear(
            name="qkv",
            inputs=h,
            outputs=h + 2 * keys,
            share="whole",
            bias=h + (1 + vision.key_bias) * keys if vision.qkv_bias else 0,
            parts=1 if vision.joined_qkv else 3,
            after_norm=True,
        ),
        *((Norm(width=h + keys, parameters=h + keys, heads=True),) if vision.qk_norm else ()),
        Attention(
            heads=vision.heads,
            kv_heads=vision.kv_heads or vision.heads,
            key_dim=d,
            value_dim=d,
            causal=False,
            window=window,
            packed=vision.joined_qkv,
        ),
        Linear(
            name="proj",
            modules=(vision.output_module,),
            inputs=h,
            outputs=h,
            share="whole",
            bias=h if vision.output_bias else 0,
        ),
    )


def _vision_block(vision: VisionShape, window: int) -> tuple[Operator, ...]:
    h, f = vision.hidden, vision.ffn
    parts = 2 if vision.gated else 1
    return (
        *_vision_attention(vision, window),
        _vision_norm(vision, h),
        Linear(
            name="up",
            inputs=h,
            outputs=parts * f,
            share="whole",
            bias=parts * f if vision.ffn_bias else 0,
            parts=parts,
            modules=() if vision.gated else vision.ffn_modules[:1],
            after_norm=True,
        ),
        Activation(width=f, gated=vision.gated, module="mlp"),
        Linear(
            name="down",
            inputs=f,
            outputs=h,
            share="whole",
            bias=h if vision.ffn_bias else 0,
            modules=() if vision.gated else vision.ffn_modules[1:],
        ),
        *([Parameters(count=vision.block_other, share="whole")] if vision.block_other else []),
    )


def _vision_norm(vision: VisionShape, width: int, per_token: int = 1) -> Norm:
    """Return a norm of the tower; `per_token` patches of `width` each make one merged token."""
    shifted = vision.norm == "scale_and_shift"
    return Norm(width=width * per_token, parameters=width * (2 if shifted else 1), layer_norm=shifted)


def _merger(vision: VisionShape, merged: int, norm: tuple[Norm, ...], other: int = 0) -> LayerKind:
    """Return the projector of a tower, per language token: its norm, then its matrices with a function between them."""
    operators: list[Operator] = [*norm, *vision.projector_operators]
    last = len(vision.projector) - 1
    for index, matrix in enumerate(vision.projector):
        parts = 2 if matrix.gated else 1
        name = "merge_out" if index == last else "merge_in"
        operators.append(
            Linear(
                name="merge_convolution" if matrix.convolves else name,
                modules=matrix.modules,
                inputs=matrix.inputs,
                outputs=parts * matrix.outputs,
                share="whole",
                bias=parts * matrix.outputs if matrix.bias else 0,
                parts=parts,
                after_norm=index == 0,
            )
        )
        if index < last:
            operators.append(Activation(width=matrix.outputs, gated=matrix.gated, module="mlp"))
    if other:
        operators.append(Parameters(count=other, share="whole"))
    return LayerKind(name="merger", hidden=merged, operators=tuple(operators))
