"""Vision towers whose code is in the model's folder and not in transformers 5.6.

Each reader names the copy of this code, or the other implementation, that it was read from.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from backend.job.model.config import Config, refusal
from backend.job.model.deepseek_v41 import tower as deepseek_v41_tower
from backend.job.model.internvl import internvl_chat_tower
from backend.job.model.newer_towers import moonvit, qwen3_asr, required
from backend.job.model.operators import Linear, Mixing, Norm
from backend.job.model.plain_towers import MOST_LAYERS, siglip
from backend.job.model.vision_shape import Projection, VisionShape


def _moon(vision: Config, _model: Config, text_hidden: int) -> VisionShape:
    """Kimi-VL's MoonViT: vllm-project/vllm vllm/model_executor/models/moonvit.py @055e47c28003."""
    sides = vision.get("merge_kernel_size", [2, 2])
    if not isinstance(sides, list | tuple) or len(sides) != 2 or sides[0] != sides[1]:
        raise refusal("bad_model_key", key="merge_kernel_size", value=sides)
    merge = Config({"merge_kernel_size": sides[0]}).size("merge_kernel_size")
    positions = {"init_pos_emb_height": 64, "init_pos_emb_width": 64}
    return moonvit(Config({**positions, **vision.values}), text_hidden, merge=merge, joined_qkv=True)


def _minicpmv(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """MiniCPM-V 2.6: 404805854/minicpmv2.6-onnx modeling_minicpmv.py, modeling_navit_siglip.py, resampler.py
    @48804ee7110d. 4.5: PcOffeeP/FineTune_MLLM Model/MiniCPM-VL-4.5 @67778f256b5b.

    Each tile of an image becomes as many tokens as there are queries. Attention of the queries to a tile, 2% of the
    tower's work, is left out.
    """
    hidden, queries = vision.size("hidden_size"), model.size("query_num", default=64)
    tile = (model.size("image_size", default=448) // vision.size("patch_size")) ** 2
    # Queries, a matrix after the attention, its own matrices and biases, and three norms.
    resampler = queries * text_hidden + 5 * text_hidden**2 + 4 * text_hidden + 6 * text_hidden
    tower = siglip(
        Config({**vision.values, "vision_use_head": False}),
        image_patches=0,
        pooled=max(1, tile // queries),
        window=tile,
        projector=(Projection(hidden, text_hidden),),
        projector_other=resampler,
    )
    return replace(tower, depth=tower.depth - model.flag("drop_vision_last_layer", True))


_OVIS_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "num_channels": 3, "image_size": 512, "patch_size": 16, "hidden_stride": 2, "vision_use_head": False,
}  # fmt: skip
_INDICATORS = 4
"""Rows of the visual embedding that mark where an image or a video begins and ends."""


def _ovis(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """Ovis2.5: Theo-Yim/VLMs Ovis/HF_Repo configuration_ovis2_5.py, modeling_ovis2_5.py @782912de6e10. A softmax over a
    visual vocabulary makes an image's tokens a mean of the rows of a table. ms-swift counts this table to the tower."""
    own = Config(vision.values, _OVIS_DEFAULTS)
    required(own, "num_patches", -1)
    required(own, "temporal_patch_size", 1)
    required(own, "preserve_original_pe", True)
    required(own, "fullatt_block_indexes", None)
    stride, rows = own.size("hidden_stride"), model.size("visual_vocab_size", default=65536)
    logits, merged = rows - _INDICATORS, own.size("hidden_size") * stride**2
    if logits < 1:
        raise refusal("bad_model_key", key="visual_vocab_size", value=rows)
    return siglip(
        own,
        image_patches=0,
        merge=stride,
        joined_qkv=False,
        projector=(),
        projector_operators=(
            Linear(name="head", inputs=merged, outputs=logits, share="whole"),
            Norm(width=logits, parameters=2 * logits, layer_norm=True),
            Mixing(
                name="visual_embedding",
                parameters=0,
                flops=2 * rows * text_hidden,
                # The softmax is in fp32; the product keeps its 16-bit copy.
                saved_bytes=6 * rows,
                moved_bytes=18 * rows,
                kernels=4,
            ),
        ),
        other=rows * text_hidden,
    )


_DOTS_DEFAULTS: Mapping[str, Any] = {
    "embed_dim": 1536, "hidden_size": 1536, "intermediate_size": 4224, "num_hidden_layers": 42,
    "num_attention_heads": 12, "num_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "use_bias": False,
    "post_norm": True,
}  # fmt: skip


def _dots(vision: Config, _model: Config, _text_hidden: int) -> VisionShape:
    """dots.ocr: redai-infra/Relax relax/models/dots_ocr/configuration.py, vision.py @d09ff62a4942."""
    own = Config(vision.values, _DOTS_DEFAULTS)
    required(own, "temporal_patch_size", 1)
    hidden, merge, bias = own.size("embed_dim"), own.size("spatial_merge_size"), own.flag("use_bias")
    heads = own.size("num_attention_heads")
    if heads > hidden:
        raise refusal("bad_model_key", key="num_attention_heads", value=heads)
    merged = hidden * merge**2
    return VisionShape(
        depth=own.size("num_hidden_layers", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=own.size("intermediate_size"),
        heads=heads,
        channels=own.size("num_channels"),
        patch=own.size("patch_size"),
        merge=merge,
        gated=True,
        norm="scale",
        patch_bias=True,
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        # The norms after the patches and after the blocks.
        other=hidden * (1 + own.flag("post_norm")),
        projector_norm="patch",
        projector_scale=2 * hidden,
        projector=(Projection(merged, merged, bias=True), Projection(merged, own.size("hidden_size"), bias=True)),
    )


_RICE_DEFAULTS: Mapping[str, Any] = {
    "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "in_channels": 3, "patch_size": 14,
    "spatial_merge_size": 2,
}  # fmt: skip


def _rice(vision: Config, _model: Config, text_hidden: int) -> VisionShape:
    """LLaVA-OneVision 1.5: randydl/LLaVA-OneVision-1.5 ds/llavaonevision1_5/configuration_llavaonevision1_5.py,
    modeling_llavaonevision1_5.py @4db2e82ab2f2."""
    own = Config(vision.values, _RICE_DEFAULTS)
    hidden, heads = own.size("hidden_size"), own.size("num_heads")
    if heads > hidden:
        raise refusal("bad_model_key", key="num_heads", value=heads)
    merge = own.size("spatial_merge_size")
    merged, out = hidden * merge**2, own.size("text_hidden_size", default=text_hidden)
    return VisionShape(
        depth=own.size("depth", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=own.size("intermediate_size"),
        heads=heads,
        channels=own.size("in_channels"),
        patch=own.size("patch_size"),
        merge=merge,
        # The class token, its rotary angles, and the norm before the blocks.
        other=hidden + hidden // heads // 2 + 2 * hidden,
        projector_norm="patch",
        projector=(Projection(merged, merged, bias=True), Projection(merged, out, bias=True)),
    )


OWN_TOWERS: Mapping[str, Callable[[Config, Config, int], VisionShape]] = {
    "deepseek_v41": deepseek_v41_tower,
    "dots_ocr": _dots,
    "internvl_chat": internvl_chat_tower,
    "kimi_vl": _moon,
    "llavaonevision1_5": _rice,
    "minicpmv": _minicpmv,
    "ovis2_5": _ovis,
    # The config.json of Qwen3-ASR for the package qwen_asr, which ms-swift uses.
    "qwen3_asr_thinker": qwen3_asr,
}
"""Readers by model_type of the whole model."""
