"""The vision towers of Gemma 3, PaliGemma and Gemma 4 (mobilenet.py has that of Gemma 3n)."""

from backend.job.model.audio import gemma4_audio, gemma4_audio_projector
from backend.job.model.config import Config, part, refusal
from backend.job.model.defaults import defaults
from backend.job.model.plain_towers import MOST_LAYERS, edge, siglip
from backend.job.model.vision_shape import Projection, VisionShape


def gemma3_tower(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_gemma3.py: the patches of an image are averaged to mm_tokens_per_image tokens."""
    hidden = vision.size("hidden_size")
    side = edge(vision, "image_size") // edge(vision, "patch_size")
    tokens = round(model.size("mm_tokens_per_image") ** 0.5)
    return siglip(
        vision,
        merge=max(1, side // tokens),
        projector_norm="token",
        projector_scale=hidden,
        projector=(Projection(hidden, text_hidden),),
        merger_linears="none",
    )


def paligemma_tower(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_paligemma.py."""
    out = model.size("projection_dim", default=text_hidden)
    return siglip(vision, projector=(Projection(vision.size("hidden_size"), out, bias=True),))


_SOFT_TOKENS = 280
"""Tokens of an image that the processor makes at most (image_processing_gemma4.py)."""


def gemma4_tower(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_gemma4.py: an image has up to vision_soft_tokens_per_image tokens, each of pooled patches."""
    hidden, pool = vision.size("hidden_size"), vision.size("pooling_kernel_size")
    audio, head = part(model.values, "audio_config"), vision.size("head_dim")
    of_audio = Config(audio or {}, defaults().get("gemma4_audio"))
    heads = vision.size("num_attention_heads")
    if vision.size("num_key_value_heads") != heads or heads * head != hidden:
        raise refusal("unsupported_model_key", key="num_key_value_heads", value=vision.get("num_key_value_heads"))
    return VisionShape(
        depth=vision.size("num_hidden_layers", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=vision.size("intermediate_size"),
        heads=heads,
        channels=3,
        patch=vision.size("patch_size"),
        merge=pool,
        image_patches=model.size("vision_soft_tokens_per_image", default=_SOFT_TOKENS) * pool**2,
        positions=2 * vision.size("position_embedding_size"),
        gated=True,
        norm="scale",
        qkv_bias=False,
        output_bias=False,
        ffn_bias=False,
        # Two norms more, and those of queries and keys.
        block_other=2 * hidden + 2 * head,
        other=gemma4_audio(of_audio) if audio else 0,
        projector_other=gemma4_audio_projector(of_audio, text_hidden) if audio else 0,
        projector=(Projection(hidden, text_hidden),),
    )
