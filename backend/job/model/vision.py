"""The vision tower of a model, from the vision part of its config.json.

Each reader names the file of transformers 5.6 that it was read from. tests/estimate/test_real_modules.py compares the
parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any

from backend.job.model.config import Config, part, refusal
from backend.job.model.defaults import defaults
from backend.job.model.shape import Projection, VisionShape

MOST_LAYERS = 512
"""Limit on the layers: planning enumerates by layer. The deepest preset has 126."""


def parse_vision(hf_config: Mapping[str, Any], text_hidden: int) -> VisionShape | None:
    """Return the tower in a config.json, or None if there is none.

    `text_hidden` is the width of the language model.
    Raises ProblemsError: missing_model_key, bad_model_key, unsupported_model_type.
    """
    values = part(hf_config, "vision_config")
    if not values:
        return None
    kind = str(hf_config.get("model_type") or values.get("model_type") or "")
    if kind not in TOWERS:
        raise refusal("unsupported_model_type", model_type=kind or "vision_config", supported=list(TOWERS))
    vision = Config(values, defaults().get(str(values.get("model_type"))))
    return TOWERS[kind](vision, Config(hf_config, defaults().get(kind)), text_hidden)


def _qwen(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_qwen2_vl.py, modeling_qwen2_5_vl.py, modeling_qwen3_vl.py."""
    kind = str(model.get("model_type") or vision.get("model_type"))
    if kind == "qwen2_vl":
        # In Qwen2-VL alone, embed_dim is the tower's width and hidden_size the output width.
        hidden, out = vision.size("embed_dim"), vision.size("hidden_size")
        ffn = hidden * vision.size("mlp_ratio")
    else:
        hidden, ffn = vision.size("hidden_size"), vision.size("intermediate_size")
        out = vision.size("out_hidden_size", default=text_hidden)
    heads = vision.size("num_heads")
    if heads > hidden:
        raise refusal("bad_model_key", key="num_heads", value=heads)
    third, gated = kind.startswith("qwen3"), kind == "qwen2_5_vl"
    merge = vision.size("spatial_merge_size", default=2)
    merged = hidden * merge**2
    return VisionShape(
        depth=vision.size("depth", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        channels=vision.size("in_channels", "in_chans", default=3),
        patch=vision.size("patch_size"),
        temporal_patch=vision.size("temporal_patch_size", default=2),
        merge=merge,
        positions=vision.size("num_position_embeddings") if third else 0,
        deep_stack=len(vision.indexes("deepstack_visual_indexes")) if third else 0,
        gated=gated,
        norm="scale" if gated else "scale_and_shift",
        patch_bias=third,
        projector_norm="patch",
        projector=(Projection(merged, merged, bias=True), Projection(merged, out, bias=True)),
    )


def _vit(vision: Config, *, projector: tuple[Projection, ...], **facts: Any) -> VisionShape:
    """Return a plain vision transformer (CLIP, SigLIP, InternViT), which resizes every image to one size."""
    patch = _edge(vision, "patch_size")
    side = _edge(vision, "image_size") // patch
    return VisionShape(
        **{
            "depth": vision.size("num_hidden_layers", largest=MOST_LAYERS),
            "hidden": vision.size("hidden_size"),
            "ffn": vision.size("intermediate_size"),
            "heads": vision.size("num_attention_heads"),
            "channels": vision.size("num_channels", default=3),
            "patch": patch,
            "positions": side**2,
            "patch_bias": True,
            "image_patches": side**2,
            "projector": projector,
            **facts,
        }
    )


def _edge(vision: Config, key: str) -> int:
    """Return a size in pixels that some configs give for both edges."""
    value = vision.get(key)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    return Config({key: value}).size(key)


def _clip(vision: Config, _model: Config, text_hidden: int) -> VisionShape:
    """modeling_clip.py, modeling_llava.py."""
    hidden = vision.size("hidden_size")
    return _vit(
        vision,
        projector=(Projection(hidden, text_hidden, bias=True), Projection(text_hidden, text_hidden, bias=True)),
        patch_bias=False,
        class_token=True,
        # The class token, and the norms before and after the blocks.
        other=5 * hidden,
    )


def _siglip(vision: Config, text_hidden: int, **facts: Any) -> VisionShape:
    """modeling_siglip.py. Its attention pooling head, which language models do not read, has parameters too."""
    hidden, ffn = vision.size("hidden_size"), vision.size("intermediate_size")
    head = 4 * hidden**2 + 4 * hidden + hidden + 2 * hidden + 2 * hidden * ffn + ffn + hidden
    return _vit(vision, other=2 * hidden + (head if vision.flag("vision_use_head", True) else 0), **facts)


def _gemma3(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_gemma3.py: the patches of an image are averaged to mm_tokens_per_image tokens."""
    hidden = vision.size("hidden_size")
    side = _edge(vision, "image_size") // _edge(vision, "patch_size")
    tokens = round(model.size("mm_tokens_per_image") ** 0.5)
    return _siglip(
        vision,
        text_hidden,
        merge=max(1, side // tokens),
        projector_norm="token",
        projector_scale=hidden,
        projector=(Projection(hidden, text_hidden),),
    )


def _paligemma(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_paligemma.py."""
    out = model.size("projection_dim", default=text_hidden)
    return _siglip(vision, text_hidden, projector=(Projection(vision.size("hidden_size"), out, bias=True),))


def _internvl(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_internvl.py: an image is one tile unless the processor cuts it."""
    hidden = vision.size("hidden_size")
    ratio = model.get("downsample_ratio", 0.5)
    if not isinstance(ratio, float) or not 0 < ratio <= 1:
        raise refusal("bad_model_key", key="downsample_ratio", value=ratio)
    merge = round(1 / ratio)
    merged = hidden * merge**2
    return _vit(
        vision,
        qkv_bias=vision.flag("attention_bias"),
        class_token=True,
        # The class token and its position; a scale after attention and one after the FFN of each block.
        other=hidden,
        block_other=2 * hidden,
        merge=merge,
        projector_norm="token",
        projector_scale=2 * merged,
        projector=(Projection(merged, text_hidden, bias=True), Projection(text_hidden, text_hidden, bias=True)),
    )


def _pixtral(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_pixtral.py, modeling_mistral3.py."""
    hidden, merge = vision.size("hidden_size"), model.size("spatial_merge_size", default=2)
    bias = model.flag("multimodal_projector_bias")
    return _vit(
        vision,
        positions=0,
        image_patches=0,
        patch_bias=False,
        qkv_bias=False,
        output_bias=False,
        ffn_bias=False,
        gated=True,
        norm="scale",
        other=hidden,
        merge=merge,
        projector_norm="patch",
        projector_scale=hidden,
        projector=(
            Projection(hidden * merge**2, hidden),
            Projection(hidden, text_hidden, bias=bias),
            Projection(text_hidden, text_hidden, bias=bias),
        ),
    )


def _glm4v(vision: Config, _model: Config, text_hidden: int) -> VisionShape:
    """modeling_glm4v.py: the FFN of a block is as wide as the output."""
    hidden, out = vision.size("hidden_size"), vision.size("out_hidden_size", default=text_hidden)
    patch, merge = vision.size("patch_size"), vision.size("spatial_merge_size")
    ffn = vision.size("intermediate_size")
    return VisionShape(
        depth=vision.size("depth", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=out,
        heads=vision.size("num_heads"),
        channels=vision.size("in_channels", default=3),
        patch=patch,
        temporal_patch=vision.size("temporal_patch_size"),
        merge=merge,
        positions=(vision.size("image_size") // patch) ** 2,
        patch_bias=True,
        qkv_bias=vision.flag("attention_bias"),
        output_bias=False,
        ffn_bias=False,
        gated=True,
        norm="scale",
        # The norms after the patches and after the blocks.
        other=2 * hidden,
        projector_norm="token",
        projector_scale=2 * out,
        projector=(
            Projection(hidden * merge**2, out, bias=True),
            Projection(out, out),
            Projection(out, ffn, gated=True),
            Projection(ffn, out),
        ),
    )


TOWERS: Mapping[str, Callable[[Config, Config, int], VisionShape]] = {
    "qwen2_vl": _qwen,
    "qwen2_5_vl": _qwen,
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
    "qwen3_5": _qwen,
    "qwen3_5_moe": _qwen,
    "gemma3": _gemma3,
    "glm4v": _glm4v,
    "glm4v_moe": _glm4v,
    "glm46v": _glm4v,
    "internvl": _internvl,
    "llava": _clip,
    "mistral3": _pixtral,
    "paligemma": _paligemma,
}
"""Readers by model_type of the whole model."""
