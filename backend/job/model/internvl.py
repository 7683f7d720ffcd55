"""InternViT with InternVL's projector, in the form of transformers and in OpenGVLab's own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backend.job.model.config import Config, refusal
from backend.job.model.plain_towers import vit
from backend.job.model.vision_shape import Projection, VisionShape

TILE = 448
"""Pixels along an edge of a tile of internvl_chat under ms-swift 4.6.0, whatever the config says (INPUT_SIZE in
template/templates/internvl.py)."""
MOST_TILES = 12
"""Tiles that ms-swift cuts an image of either form into at most: MAX_NUM of the same file, and max_patches of
transformers' GotOcr2ImageProcessor. An image of several tiles is seen whole, too."""
_OWN_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 3200, "intermediate_size": 12800, "num_hidden_layers": 48, "num_attention_heads": 25,
    "num_channels": 3, "image_size": 224, "patch_size": 14, "qkv_bias": False, "qk_normalization": True,
    "norm_type": "rms_norm",
}  # fmt: skip
"""configuration_intern_vit.py of the same repository as modeling_intern_vit.py."""


def internvl_tower(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_internvl.py of transformers 5.6."""
    return _intern_vit(
        vision,
        model,
        text_hidden,
        norm=vision.get("norm_type", "layer_norm"),
        qk_norm=vision.flag("use_qk_norm"),
        qkv_bias=vision.flag("attention_bias"),
    )


def internvl_chat_tower(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """OpenGVLab/InternVL internvl_chat/internvl/model/internvl_chat/modeling_intern_vit.py, modeling_internvl_chat.py
    @2410d1dbf208, whose language model is `llm_config`."""
    own = Config(vision.values, _OWN_DEFAULTS)
    return _intern_vit(
        own,
        model,
        text_hidden,
        norm=own.get("norm_type"),
        qk_norm=own.flag("qk_normalization"),
        qkv_bias=own.flag("qkv_bias"),
        joined_qkv=True,
        image_patches=(TILE // own.size("patch_size", largest=TILE)) ** 2,
        tiles_variable="MAX_NUM",
    )


def _intern_vit(
    vision: Config, model: Config, text_hidden: int, *, norm: object, qk_norm: bool, **facts: Any
) -> VisionShape:
    if norm not in ("layer_norm", "rms_norm"):
        raise refusal("unsupported_model_key", key="norm_type", value=norm)
    hidden, ratio = vision.size("hidden_size"), model.get("downsample_ratio", 0.5)
    if not isinstance(ratio, float) or not 0 < ratio <= 1:
        raise refusal("bad_model_key", key="downsample_ratio", value=ratio)
    merge = round(1 / ratio)
    merged = hidden * merge**2
    tower = vit(
        vision,
        class_token=True,
        norm="scale" if norm == "rms_norm" else "scale_and_shift",
        qk_norm=qk_norm,
        # The class token and its position; a scale after attention and one after the FFN of each block.
        other=hidden,
        block_other=2 * hidden,
        merge=merge,
        tiles=MOST_TILES + 1,
        projector_norm="token",
        projector_scale=2 * merged,
        projector=(Projection(merged, text_hidden, bias=True), Projection(text_hidden, text_hidden, bias=True)),
        **facts,
    )
    return replace(tower, window=tower.image_patches)
