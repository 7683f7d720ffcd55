"""The tower of DeepSeek-OCR 2: SAM's transformer, convolutions, and a language model over patches and learned queries.

Read from transformers 5.19 configuration_deepseek_ocr2.py and modeling_deepseek_ocr2.py. It gives the parameters only.
"""

from collections.abc import Mapping
from typing import Any

from backend.job.model.config import Config, part, refusal
from backend.job.model.plain_towers import MOST_LAYERS, edge
from backend.job.model.vision_shape import Projection, VisionShape

_SAM: Mapping[str, Any] = {
    "hidden_size": 768, "output_channels": 256, "num_hidden_layers": 12, "num_attention_heads": 12, "num_channels": 3,
    "image_size": 1024, "patch_size": 16, "qkv_bias": True, "mlp_ratio": 4.0, "use_abs_pos": True, "use_rel_pos": True,
    "window_size": 14, "global_attn_indexes": [2, 5, 8, 11], "downsample_channels": [512, 896],
}  # fmt: skip
_ENCODER: Mapping[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32,
}  # fmt: skip
"""Values of the classes of both parts."""
_QUERIES = 144 + 256
"""Learned queries for images of 768 and of 1,024 pixels. Each becomes a token."""
_MOST_RATIO = 1024


def ocr_tower(vision: Config, _model: Config, text_hidden: int) -> VisionShape:
    """Return the blocks of the language model, with the weights of all before them, and the projector with the
    embedding that stands between views."""
    sam = Config(part(vision.values, "sam_config") or {}, _SAM)
    encoder = Config(part(vision.values, "encoder_config") or {}, _ENCODER)
    hidden, heads = encoder.size("hidden_size"), encoder.size("num_attention_heads")
    if heads > hidden:
        raise refusal("bad_model_key", key="num_attention_heads", value=heads)
    return VisionShape(
        depth=encoder.size("num_hidden_layers", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=encoder.size("intermediate_size"),
        heads=heads,
        kv_heads=encoder.size("num_key_value_heads", default=heads),
        channels=sam.size("num_channels"),
        patch=edge(sam, "patch_size"),
        gated=True,
        norm="scale",
        joined_qkv=False,
        output_bias=False,
        ffn_bias=False,
        image_patches=_QUERIES,
        # Its patches enter SAM and not these blocks.
        stem=(),
        other=_sam_weights(sam) - _patches(sam, hidden) + (_QUERIES + 1) * hidden,
        projector=(Projection(hidden, text_hidden, bias=True),),
        projector_other=text_hidden,
    )


def _patches(sam: Config, hidden: int) -> int:
    """Return the weights of a patch embedding as wide as `hidden`, without a bias."""
    return sam.size("num_channels") * edge(sam, "patch_size") ** 2 * hidden


def _sam_weights(sam: Config) -> int:
    """Return the weights of SAM's transformer, whose windows have tables of relative positions, and of the convolutions
    after it."""
    hidden, heads, channels = sam.size("hidden_size"), sam.size("num_attention_heads"), sam.size("output_channels")
    layers = sam.size("num_hidden_layers", largest=MOST_LAYERS)
    side = edge(sam, "image_size") // edge(sam, "patch_size")
    ffn, positions = _ffn(sam, hidden), sam.flag("use_rel_pos", True)
    block = 4 * hidden**2 + (3 * sam.flag("qkv_bias", True) + 1) * hidden + 2 * hidden * ffn + ffn + 5 * hidden
    seen, window = sam.indexes("global_attn_indexes"), sam.size("window_size")
    sides = [side if index in seen else window for index in range(layers)]
    relative = sum(2 * (2 * each - 1) * (hidden // heads) for each in sides) if positions else 0
    absolute = side**2 * hidden if sam.flag("use_abs_pos", True) else 0
    first, second = _downsampled(sam)
    neck = channels * hidden + 9 * channels**2 + 4 * channels
    joined = 9 * (channels * first + first * second)
    return _patches(sam, hidden) + hidden + absolute + layers * block + relative + neck + joined


def _ffn(sam: Config, hidden: int) -> int:
    if sam.has("mlp_dim"):
        return sam.size("mlp_dim")
    ratio = sam.get("mlp_ratio")
    if type(ratio) not in (int, float) or not 0 < ratio <= _MOST_RATIO:
        raise refusal("bad_model_key", key="mlp_ratio", value=ratio)
    return int(hidden * ratio)


def _downsampled(sam: Config) -> tuple[int, int]:
    """Return the channels after each of both convolutions that join patches."""
    widths = sam.indexes("downsample_channels")
    if len(widths) != 2 or min(widths) < 1:
        raise refusal("bad_model_key", key="downsample_channels", value=list(widths))
    return widths[0], widths[1]
