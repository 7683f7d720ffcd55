"""Plain vision transformers (CLIP, SigLIP, InternViT, Pixtral), which several models use with projectors of their own.

Each reader names the file of transformers 5.6 that it was read from.
"""

from collections.abc import Callable, Mapping
from typing import Any

from backend.job.model.config import Config, refusal
from backend.job.model.vision_shape import Projection, VisionShape

MOST_LAYERS = 512
"""Limit on the layers: planning enumerates by layer. The deepest preset has 126."""


def vit(vision: Config, *, projector: tuple[Projection, ...], **facts: Any) -> VisionShape:
    """Return a plain vision transformer, which resizes every image to one size."""
    patch = edge(vision, "patch_size")
    side = edge(vision, "image_size") // patch
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
            "joined_qkv": False,
            "image_patches": side**2,
            "projector": projector,
            **facts,
        }
    )


def edge(vision: Config, key: str) -> int:
    """Return a size in pixels that some configs give for both edges."""
    value = vision.get(key)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    return Config({key: value}).size(key)


def most_tiles(model: Config, size: int) -> int:
    """Return the most tiles of so many pixels along an edge that an image is cut into, without its whole view."""
    points = model.get("image_grid_pinpoints")
    if not isinstance(points, list) or not all(isinstance(p, list) and len(p) == 2 for p in points) or not points:
        raise refusal("bad_model_key", key="image_grid_pinpoints", value=points)
    return max(max(1, int(height) // size) * max(1, int(width) // size) for height, width in points)


def clip(vision: Config, **facts: Any) -> VisionShape:
    """modeling_clip.py."""
    # The class token, and the norms before and after the blocks.
    other = 5 * vision.size("hidden_size") + facts.pop("other", 0)
    return vit(vision, **{"patch_bias": False, "class_token": True, "other": other, **facts})


def siglip(vision: Config, **facts: Any) -> VisionShape:
    """modeling_siglip.py. Its attention pooling head, which language models do not read, has parameters too."""
    hidden, ffn = vision.size("hidden_size"), vision.size("intermediate_size")
    head = 4 * hidden**2 + 4 * hidden + hidden + 2 * hidden + 2 * hidden * ffn + ffn + hidden
    other = 2 * hidden + (head if vision.flag("vision_use_head", True) else 0) + facts.pop("other", 0)
    return vit(vision, **{"other": other, **facts})


def siglip_2(vision: Config, **facts: Any) -> VisionShape:
    """modeling_siglip2.py: images keep their size, up to num_patches."""
    positions = vision.size("num_patches")
    patch = {"image_size": round(positions**0.5) * vision.size("patch_size")}
    sized = Config({**patch, **{key: vision.get(key) for key in _SIGLIP_KEYS if vision.get(key) is not None}})
    return siglip(sized, **{"positions": positions, "image_patches": 0, **facts})


_SIGLIP_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_channels",
    "patch_size",
    "vision_use_head",
)


def pixtral(vision: Config, **facts: Any) -> VisionShape:
    """modeling_pixtral.py: images keep their size, and a norm precedes the blocks."""
    bare = {"patch_bias": False, "qkv_bias": False, "output_bias": False, "ffn_bias": False}
    usual = {"positions": 0, "image_patches": 0, "gated": True, "norm": "scale", "other": vision.size("hidden_size")}
    return vit(vision, **{**bare, **usual, "output_module": "o_proj", **facts})


PLAIN: Mapping[str, Callable[..., VisionShape]] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "siglip2_vision_model": siglip_2,
    "pixtral": pixtral,
}
"""Readers by model_type of the tower."""


def plain_tower(vision: Config, usual: str, **facts: Any) -> VisionShape:
    """Return the tower that `model_type` names; `usual` if the config does not name one.

    Raises ProblemsError: unsupported_model_type.
    """
    kind = str(vision.get("model_type") or usual)
    if kind not in PLAIN:
        raise refusal("unsupported_model_type", model_type=kind, supported=list(PLAIN))
    return PLAIN[kind](vision, **facts)
