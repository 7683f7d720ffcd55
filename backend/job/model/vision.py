"""The vision tower of a model, from the vision part of its config.json.

Each reader names the file of transformers 5.6 that it was read from. tests/estimate/test_real_modules.py compares the
parameters.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from backend.job.model.audio import AUDIO, qwen3_audio, qwen_audio, whisper
from backend.job.model.config import Config, part, refusal
from backend.job.model.defaults import defaults
from backend.job.model.gemma_towers import gemma3_tower, gemma4_tower, paligemma_tower
from backend.job.model.internvl import internvl_tower
from backend.job.model.llama import llama4_tower
from backend.job.model.mllama import mllama_tower
from backend.job.model.mobilenet import gemma3n_tower
from backend.job.model.newer_towers import NEWER_READERS
from backend.job.model.own_towers import OWN_TOWERS
from backend.job.model.patch_gradients import WITH_PATCH_GRADIENTS
from backend.job.model.plain_towers import MOST_LAYERS as MOST_LAYERS
from backend.job.model.plain_towers import edge, most_tiles, pixtral, plain_tower, vit
from backend.job.model.vision_shape import Projection, VisionShape


def parse_vision(hf_config: Mapping[str, Any], text_hidden: int) -> VisionShape | None:
    """Return the tower in a config.json, or None if there is none.

    `text_hidden` is the width of the language model.
    Raises ProblemsError: missing_model_key, bad_model_key, unsupported_model_type.
    """
    kind = str(hf_config.get("model_type") or "")
    if kind in AUDIO:
        values = part(hf_config, "audio_config") or {"model_type": AUDIO[kind]}
    else:
        values = part(hf_config, "vision_config") or part(hf_config, "vit_config") or {}
    if not values:
        if kind in OWN_TOWERS:
            raise refusal("missing_model_key", key="vision_config")
        return None
    kind = kind or str(values.get("model_type") or "")
    if kind not in TOWERS:
        raise refusal("unsupported_model_type", model_type=kind or "vision_config", supported=list(TOWERS))
    vision = Config(values, defaults().get(str(values.get("model_type"))))
    tower = TOWERS[kind](vision, Config(hf_config, defaults().get(kind)), text_hidden)
    return replace(tower, patches_need=kind in WITH_PATCH_GRADIENTS)


def _qwen(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_qwen2_vl.py, modeling_qwen2_5_vl.py, modeling_qwen3_vl.py, and of transformers 5.19
    modeling_exaone4_5.py and modeling_cohere_compass.py."""
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
    third = kind.startswith(("qwen3", "qwen4", "cohere_compass"))
    gated = kind in ("qwen2_5_vl", "qwen2_5_omni_thinker", "exaone4_5")
    merge = vision.size("spatial_merge_size", default=2)
    merged = hidden * merge**2
    first, last = ("linear_fc1", "linear_fc2") if third else ("fc1", "fc2")
    return VisionShape(
        depth=vision.size("depth", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=vision.size("num_key_value_heads") if kind == "exaone4_5" else heads,
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
        ffn_modules=(first, last),
        projector=(
            Projection(merged, merged, bias=True, modules=(first,) if third else ()),
            Projection(merged, out, bias=True, modules=(last,) if third else ()),
        ),
        merger_linears="names_of_blocks" if third else "own_names",
    )


def _two_layers(vision: Config, text_hidden: int, bias: bool = True) -> tuple[Projection, ...]:
    """Return LLaVA's projector: two matrices."""
    hidden = vision.size("hidden_size")
    return (Projection(hidden, text_hidden, bias=bias), Projection(text_hidden, text_hidden, bias=bias))


def _llava(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_llava.py."""
    projector = _two_layers(vision, text_hidden, model.flag("multimodal_projector_bias", True))
    return plain_tower(vision, "clip_vision_model", projector=projector)


def _llava_tiled(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_llava_next.py, modeling_llava_next_video.py, modeling_llava_onevision.py.

    An image is cut into tiles, and is also seen whole. The estimate takes the most tiles that the config allows.
    """
    projector = _two_layers(vision, text_hidden, model.flag("multimodal_projector_bias", True))
    usual = "siglip_vision_model" if model.get("model_type") == "llava_onevision" else "clip_vision_model"
    tower = plain_tower(vision, usual, projector=projector, projector_other=text_hidden)
    tiles = 1 + most_tiles(model, edge(vision, "image_size"))
    return replace(tower, image_patches=tiles * tower.image_patches, window=tower.image_patches)


def _video_llava(vision: Config, _model: Config, text_hidden: int) -> VisionShape:
    """modeling_video_llava.py: one tower for images and one of the same sizes for videos."""
    tower = plain_tower(vision, "clip_vision_model", projector=_two_layers(vision, text_hidden))
    block = 4 * (tower.hidden**2 + tower.hidden) + 2 * tower.hidden * tower.ffn + tower.ffn + 5 * tower.hidden
    patches = tower.channels * tower.patch**2 * tower.hidden + (tower.positions + 1) * tower.hidden
    return replace(tower, other=2 * tower.other + tower.depth * block + patches)


def _shuffled(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_aya_vision.py, modeling_cohere2_vision.py: SwiGLU over the joined patches of an image."""
    merge = model.size("downsample_factor")
    merged = vision.size("hidden_size") * merge**2
    normed = model.get("model_type") == "aya_vision"
    width = model.size("alignment_intermediate_size", default=text_hidden)
    return plain_tower(
        vision,
        "siglip_vision_model",
        merge=merge,
        projector_norm="token" if normed else "none",
        projector_scale=2 * merged if normed else 0,
        projector=(
            Projection(merged, width // 2, bias=True, gated=True),
            Projection(width // 2, text_hidden, bias=True),
        ),
    )


def _lfm2(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_lfm2_vl.py."""
    merge, width = model.size("downsample_factor"), model.size("projector_hidden_size")
    merged, bias = vision.size("hidden_size") * merge**2, model.flag("projector_bias")
    normed = model.flag("projector_use_layernorm")
    return plain_tower(
        vision,
        "siglip2_vision_model",
        merge=merge,
        projector_norm="token" if normed else "none",
        projector_scale=2 * merged if normed else 0,
        projector=(Projection(merged, width, bias=bias), Projection(width, text_hidden, bias=bias)),
    )


def _idefics3(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_idefics3.py, modeling_smolvlm.py: an image is one tile unless the processor cuts it."""
    hidden, merge = vision.size("hidden_size"), model.size("scale_factor")
    projector = (Projection(hidden * merge**2, text_hidden),)
    # The norm after the blocks.
    return vit(vision, projector=projector, merge=merge, other=2 * hidden)


def _mistral3(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_mistral3.py."""
    hidden, merge = vision.size("hidden_size"), model.size("spatial_merge_size", default=2)
    bias = model.flag("multimodal_projector_bias")
    return pixtral(
        vision,
        merge=merge,
        projector_norm="patch",
        projector_scale=hidden,
        projector=(
            Projection(hidden * merge**2, hidden),
            Projection(hidden, text_hidden, bias=bias),
            Projection(text_hidden, text_hidden, bias=bias),
        ),
    )


def _omni(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_qwen2_5_omni.py, modeling_qwen3_omni_moe.py. The audio tower is frozen with the vision tower."""
    tower = _qwen(vision, model, text_hidden)
    audio = part(model.values, "audio_config")
    if not audio:
        raise refusal("missing_model_key", key="audio_config")
    of_audio = Config(audio, defaults().get(str(audio.get("model_type"))))
    weights, projector = (qwen3_audio if tower.deep_stack else qwen_audio)(of_audio)
    return replace(tower, other=tower.other + weights, projector_other=projector)


def _audio(audio: Config, _model: Config, text_hidden: int) -> VisionShape:
    """modeling_qwen2_audio.py: an encoder of clips of 30 s, as images whose patches are the frames after its
    convolutions."""
    return whisper(audio, projector=(Projection(audio.size("d_model"), text_hidden, bias=True),))


def _voxtral(audio: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_voxtral.py: four frames of a clip become one token."""
    width = audio.size("intermediate_size")
    return whisper(
        audio,
        pooled=width // audio.size("d_model", "hidden_size"),
        projector=(Projection(width, text_hidden), Projection(text_hidden, text_hidden)),
    )


def _ernie(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_ernie4_5_vl_moe.py."""
    hidden, merge = vision.size("hidden_size"), vision.size("spatial_merge_size")
    merged, ratio = hidden * merge**2, vision.size("temporal_merge_size")
    temporal = merged * ratio * merged + merged + merged**2 + merged + 2 * merged
    return VisionShape(
        depth=vision.size("depth", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=vision.size("intermediate_size"),
        heads=vision.size("num_heads"),
        channels=vision.size("in_channels", default=3),
        patch=vision.size("patch_size"),
        merge=merge,
        other=2 * hidden,
        # The layers that join frames, a norm after each pair of matrices and one after the projector.
        projector_other=temporal + 2 * merged + text_hidden,
        projector=(
            Projection(merged, merged, bias=True),
            Projection(merged, merged, bias=True),
            Projection(merged, text_hidden, bias=True),
        ),
    )


def _paddle(vision: Config, _model: Config, text_hidden: int) -> VisionShape:
    """modeling_paddleocr_vl.py."""
    hidden, merge = vision.size("hidden_size"), vision.size("spatial_merge_size")
    merged = hidden * merge**2
    return vit(
        vision,
        image_patches=0,
        other=2 * hidden,
        merge=merge,
        projector_norm="patch",
        projector_scale=2 * hidden,
        projector=(Projection(merged, merged, bias=True), Projection(merged, text_hidden, bias=True)),
    )


def _glm_ocr(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_glm_ocr.py."""
    hidden, out = vision.size("hidden_size"), vision.size("out_hidden_size", default=text_hidden)
    head = hidden // vision.size("num_heads")
    wide = out * vision.size("in_channels", default=3)
    tower = _glm4v(vision, model, text_hidden)
    return replace(
        tower,
        ffn=vision.size("intermediate_size"),
        positions=0,
        qkv_bias=vision.flag("attention_bias"),
        output_bias=vision.flag("attention_bias"),
        ffn_bias=vision.flag("attention_bias"),
        block_other=2 * head,
        other=hidden,
        projector=_glm_projector(tower, out, wide),
    )


def _glm5(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_glm5_next.py of 5.19: the tower of GLM-OCR, whose projector has a width of its own."""
    out, wide = vision.size("out_hidden_size"), vision.size("projection_intermediate_size")
    tower = _glm_ocr(vision, model, text_hidden)
    return replace(tower, projector=_glm_projector(tower, out, wide))


def _glm_projector(tower: VisionShape, out: int, wide: int) -> tuple[Projection, ...]:
    """Return GLM-4V's projector with another width between its last matrices."""
    convolution, projection, gate, down = tower.projector
    return convolution, projection, replace(gate, inputs=out, outputs=wide), replace(down, inputs=wide, outputs=out)


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
        positions=(vision.size("image_size", default=patch) // patch) ** 2,
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
            Projection(hidden * merge**2, out, bias=True, convolves=True),
            Projection(out, out, modules=("proj",)),
            Projection(out, ffn, gated=True, modules=("gate_proj", "up_proj")),
            Projection(ffn, out, modules=("down_proj",)),
        ),
    )


TOWERS: Mapping[str, Callable[[Config, Config, int], VisionShape]] = {
    **OWN_TOWERS,
    **NEWER_READERS,
    "qwen2_vl": _qwen,
    "qwen2_5_vl": _qwen,
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
    "qwen3_5": _qwen,
    "qwen3_5_moe": _qwen,
    "qwen4_exp": _qwen,
    "qwen2_5_omni_thinker": _omni,
    "qwen3_omni_moe_thinker": _omni,
    "qwen2_audio": _audio,
    "voxtral": _voxtral,
    "aya_vision": _shuffled,
    "cohere2_vision": _shuffled,
    "cohere_compass": _qwen,
    "ernie4_5_vl_moe": _ernie,
    "exaone4_5": _qwen,
    "gemma3": gemma3_tower,
    "gemma3n": gemma3n_tower,
    "gemma4": gemma4_tower,
    "glm4v": _glm4v,
    "glm4v_moe": _glm4v,
    "glm46v": _glm4v,
    # Its classes are those of glm46v (5.19 configuration_glmga.py).
    "glmga": _glm4v,
    "glm_ocr": _glm_ocr,
    "glm5_next": _glm5,
    "idefics3": _idefics3,
    "internvl": internvl_tower,
    "lfm2_vl": _lfm2,
    "llama4": llama4_tower,
    "llava": _llava,
    "llava_next": _llava_tiled,
    "llava_next_video": _llava_tiled,
    "llava_onevision": _llava_tiled,
    "mistral3": _mistral3,
    "mllama": mllama_tower,
    "paddleocr_vl": _paddle,
    "paligemma": paligemma_tower,
    "smolvlm": _idefics3,
    "video_llava": _video_llava,
}
"""Readers by model_type of the whole model."""
