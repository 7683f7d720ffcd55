"""Vision towers whose code is in the model's folder and not in transformers 5.6.

Each reader names the copy of this code, or the other implementation, that it was read from.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from backend.job.model.config import Config, refusal
from backend.job.model.newer_towers import moonvit, qwen3_asr
from backend.job.model.plain_towers import siglip
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
    @48804ee7110d.

    Each tile of an image becomes as many tokens as there are queries. Attention of the queries to a tile, 2% of the
    tower's work, is left out. Other versions of this type have another language model.
    """
    if model.get("version") != 2.6:
        raise refusal("unsupported_model_key", key="version", value=model.get("version"))
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


OWN_TOWERS: Mapping[str, Callable[[Config, Config, int], VisionShape]] = {
    "kimi_vl": _moon,
    "minicpmv": _minicpmv,
    # The config.json of Qwen3-ASR for the package qwen_asr, which ms-swift uses.
    "qwen3_asr_thinker": qwen3_asr,
}
"""Readers by model_type of the whole model."""
