"""Towers of models that transformers 5.6 does not have and a later release does (newer.py has the language models).

Each reader names the file of transformers 5.19 that it was read from.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from backend.job.model.config import Config, part, refusal
from backend.job.model.deepseek_ocr import ocr_tower
from backend.job.model.defaults import defaults
from backend.job.model.gemma_towers import gemma4_tower
from backend.job.model.granite_vision import granite_tower
from backend.job.model.joining_towers import hunyuan_tower, minimax_tower, step_tower
from backend.job.model.operators import Linear, Mixing, Norm
from backend.job.model.plain_towers import MOST_LAYERS, siglip
from backend.job.model.vision_shape import Projection, VisionShape

_SOFT_TOKENS = 280
"""Tokens of an image of Gemma 4 Unified that its processor makes at most (image_processing_gemma4_unified.py)."""
_TILE = 448
"""Pixels along an edge of the tiles that the processor of MiniCPM-V cuts an image into (scale_resolution in
image_processing_minicpmv4_6.py)."""
_CLIP = 3000
"""Frames of a clip of 30 s, for which the audio of a sample is taken."""


def required(config: Config, key: str, *known: object) -> None:
    """Refuse a value that the reader does not describe."""
    value = config.get(key, known[0])
    if (tuple(value) if isinstance(value, list) else value) not in known:
        raise refusal("unsupported_model_key", key=key, value=value)


def _gemma4_unified(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_gemma4_unified.py: no tower. The projector reads the pixels of a token, and mcore-bridge and ms-swift
    freeze all of it as the projector. Audio has a projector, too."""
    hidden, patch = vision.size("mm_embed_dim"), vision.size("patch_size") * vision.size("pooling_kernel_size")
    pixels, out = 3 * patch**2, vision.size("output_proj_dims")
    if out != hidden:
        raise refusal("unsupported_model_key", key="output_proj_dims", value=out)
    audio = part(model.values, "audio_config")
    heard = Config(audio or {}, defaults().get("gemma4_unified_audio"))
    positions = 2 * vision.size("mm_posemb_size") * hidden
    return VisionShape(
        depth=0,
        hidden=hidden,
        ffn=0,
        heads=1,
        channels=3,
        patch=patch,
        image_patches=_SOFT_TOKENS,
        projector=(),
        projector_operators=(
            Norm(width=pixels, parameters=2 * pixels, layer_norm=True),
            Linear(name="patch_dense", inputs=pixels, outputs=hidden, share="whole", bias=hidden, after_norm=True),
            Norm(width=hidden, parameters=2 * hidden, layer_norm=True),
            Norm(width=hidden, parameters=2 * hidden, layer_norm=True),
            Norm(width=hidden, parameters=0, in_fp32=True),
            Linear(name="embedding_projection", inputs=hidden, outputs=text_hidden, share="whole", after_norm=True),
        ),
        projector_other=positions + (heard.size("audio_embed_dim") * text_hidden if audio else 0),
    )


def _hyperclova(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_hyperclovax_vision_v2.py: the tower of Qwen2.5-VL with its merger, and a matrix more."""
    hidden, out = vision.size("hidden_size"), vision.size("out_hidden_size")
    merge = vision.size("spatial_merge_size")
    merged = hidden * merge**2
    return VisionShape(
        depth=vision.size("depth", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=vision.size("intermediate_size"),
        heads=vision.size("num_heads"),
        channels=vision.size("in_channels", "in_chans"),
        patch=vision.size("patch_size"),
        temporal_patch=vision.size("temporal_patch_size"),
        merge=merge,
        gated=True,
        norm="scale",
        projector_norm="patch",
        projector=(
            Projection(merged, merged, bias=True),
            Projection(merged, out, bias=True),
            Projection(out, text_hidden, bias=True),
        ),
    )


def _kimi(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_kimi_k25.py. The config.json of releases has the names of Moonshot's own code (`vt_hidden_size`)."""
    hidden = vision.size("hidden_size", "vt_hidden_size")
    required(vision, "merge_kernel_size", (2, 2))
    required(vision, "mm_projector_type", "patchmerger")
    projected = model.size("projection_hidden_size", default=hidden)
    if vision.size("mm_hidden_size", default=projected) != hidden:
        raise refusal("unsupported_model_key", key="mm_hidden_size", value=vision.get("mm_hidden_size"))
    return moonvit(vision, text_hidden, merge=2, joined_qkv=False)


def moonvit(vision: Config, text_hidden: int, *, merge: int, joined_qkv: bool) -> VisionShape:
    """Return the tower of Kimi-VL and Kimi K2.5, whose projector joins `merge` x `merge` patches."""
    hidden = vision.size("hidden_size", "vt_hidden_size")
    height = vision.size("pos_emb_height", "init_pos_emb_height")
    merged = hidden * merge**2
    return VisionShape(
        depth=vision.size("num_hidden_layers", "vt_num_hidden_layers", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=vision.size("intermediate_size", "vt_intermediate_size"),
        heads=vision.size("num_attention_heads", "vt_num_attention_heads"),
        channels=3,
        patch=vision.size("patch_size"),
        patch_bias=True,
        joined_qkv=joined_qkv,
        positions=height * vision.size("pos_emb_width", "init_pos_emb_width"),
        # The norm after the blocks.
        other=2 * hidden,
        merge=merge,
        projector_norm="patch",
        projector=(Projection(merged, merged, bias=True), Projection(merged, text_hidden, bias=True)),
    )


def _minicpm(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_minicpmv4_6.py, modeling_minicpmv4_7.py: 2 x 2 patches are joined within the tower, and again by the
    projector."""
    required(model, "downsample_mode", "16x")
    required(model, "merge_kernel_size", (2, 2))
    required(vision, "window_kernel_size", (2, 2))
    required(model, "merger_times", 1)
    hidden, last = vision.size("hidden_size"), model.get("insert_layer_id")
    tower = siglip(
        Config({**vision.values, "vision_use_head": False}, defaults().get("minicpmv4_6_vision")),
        image_patches=0,
        pooled=16,
        merge=2,
        window=(_TILE // vision.size("patch_size")) ** 2,
        joined_qkv=False,
        projector_norm="token",
        projector_scale=8 * hidden,
        projector=(Projection(4 * hidden, 4 * hidden, bias=True), Projection(4 * hidden, text_hidden, bias=True)),
    )
    if type(last) is not int or not 0 <= last < tower.depth:
        raise refusal("unsupported_model_key", key="insert_layer_id", value=last)
    return replace(tower, joins_after=last + 1, merger_linears="names_of_blocks")


def _muse(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_muse_glimmer.py. Windows of some layers, as large as pos_emb_height patches, are not counted."""
    hidden, merge = vision.size("hidden_size"), vision.size("merge_size")
    out, wide = model.size("out_hidden_size"), model.size("projector_hidden_size")
    if out != hidden * merge**2:
        raise refusal("unsupported_model_key", key="out_hidden_size", value=out)
    return VisionShape(
        depth=vision.size("num_hidden_layers", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=vision.size("intermediate_size"),
        heads=vision.size("num_attention_heads"),
        channels=3,
        patch=vision.size("patch_size"),
        temporal_patch=vision.size("patch_temporal"),
        joined_qkv=False,
        positions=vision.size("pos_emb_height") * vision.size("pos_emb_width"),
        # The norms before and after the blocks.
        other=4 * hidden,
        merge=merge,
        projector=(Projection(out, wide), Projection(wide, wide), Projection(wide, text_hidden)),
    )


def qwen3_asr(audio: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_qwen3_asr.py, and QwenLM/Qwen3-ASR qwen_asr/core/transformers_backend/modeling_qwen3_asr.py @7c6daf7:
    three convolutions halve the frames of a chunk and its frequencies each."""
    if model.get("classify_num") is not None:
        raise refusal("unsupported_model_key", key="classify_num", value=model.get("classify_num"))
    hidden, width, bins = audio.size("d_model"), audio.size("downsample_hidden_size"), audio.size("num_mel_bins")
    frames = 2 * audio.size("n_window")
    products, kept, channels, chunk = 0, 0, 1, frames
    for _ in range(3):
        chunk, bins = -(-chunk // 2), -(-bins // 2)
        products += 9 * channels * width * chunk * bins
        # The function of each convolution keeps its input, and the next convolution keeps the output.
        kept += 2 * width * chunk * bins
        channels = width
    convolutions = 9 * width + width + 2 * (9 * width**2 + width)
    out = audio.size("output_dim")
    return VisionShape(
        depth=audio.size("encoder_layers", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=audio.size("encoder_ffn_dim"),
        heads=audio.size("encoder_attention_heads"),
        channels=1,
        patch=1,
        stem=(
            Mixing(
                name="convolutions",
                parameters=convolutions,
                flops=2 * products / chunk,
                saved_bytes=2 * kept / chunk,
                moved_bytes=2 * kept / chunk,
                kernels=6,
            ),
            Linear(name="conv_out", inputs=width * bins, outputs=hidden, share="whole"),
        ),
        kept=kept // chunk,
        joined_qkv=False,
        pooled=1,
        image_patches=_CLIP // frames * chunk,
        window=max(1, audio.size("n_window_infer") // frames) * chunk,
        other=2 * hidden,
        projector=(Projection(hidden, hidden, bias=True), Projection(hidden, out, bias=True)),
    )


NEWER_READERS: Mapping[str, Callable[[Config, Config, int], VisionShape]] = {
    "deepseek_ocr2": ocr_tower,
    "diffusion_gemma": gemma4_tower,
    "gemma4_unified": _gemma4_unified,
    "granite4_vision": granite_tower,
    "hunyuan_vl": hunyuan_tower,
    "hyperclovax_vision_v2": _hyperclova,
    "kimi_k25": _kimi,
    "minicpmv4_6": _minicpm,
    "minicpmv4_7": _minicpm,
    "minimax_m3_vl": minimax_tower,
    "muse_glimmer": _muse,
    "qwen3_asr": qwen3_asr,
    "step3p7": step_tower,
}
"""Readers by model_type of the whole model. exaone4_5 has the tower of Qwen2.5-VL, cohere_compass that of Qwen3-VL
(vision.py)."""
