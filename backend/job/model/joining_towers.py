"""Towers whose patches are joined by convolutions or by a projector of several steps.

Each reader names the file of transformers 5.19 that it was read from.
"""

from backend.job.model.config import Config, refusal
from backend.job.model.operators import Activation, Keep, Linear, Mixing, Norm
from backend.job.model.plain_towers import MOST_LAYERS, edge
from backend.job.model.vision_shape import VisionShape

_STRIDES = (2, 2)
"""Strides of the two convolutions after the blocks of Step 3.7."""


def minimax_tower(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_minimax_m3_vl.py: two matrices for each patch, and two for the patches of a token together. The tower
    has no mask, so the patches of all images of a micro-batch see each other. FLOPs per token, and so MFU, are those of
    a micro-batch of one sequence."""
    hidden, merge = vision.size("hidden_size"), vision.size("spatial_merge_size")
    wide, patches = model.size("projector_hidden_size"), merge**2
    joined = patches * text_hidden
    return VisionShape(
        depth=vision.size("num_hidden_layers", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=vision.size("intermediate_size"),
        heads=vision.size("num_attention_heads"),
        channels=vision.size("num_channels"),
        patch=vision.size("patch_size"),
        temporal_patch=vision.size("temporal_patch_size"),
        merge=merge,
        joins_images=True,
        joined_qkv=False,
        # The norm before the blocks.
        other=2 * hidden,
        projector=(),
        projector_operators=(
            Keep(width=patches * hidden, weight_only=True),
            Linear(name="linear_1", inputs=hidden, outputs=wide, share="whole", bias=wide, active=patches),
            Activation(width=patches * wide, gated=False, module="mlp"),
            Linear(name="linear_2", inputs=wide, outputs=text_hidden, share="whole", bias=text_hidden, active=patches),
            Linear(name="merge_linear_1", inputs=joined, outputs=wide, share="whole", bias=wide, after_norm=True),
            Activation(width=wide, gated=False, module="mlp"),
            Linear(name="merge_linear_2", inputs=wide, outputs=text_hidden, share="whole", bias=text_hidden),
        ),
    )


def hunyuan_tower(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_hunyuan_vl.py: a convolution joins the patches of a token. The tokens for the ends of rows and of an
    image are not counted in its length."""
    hidden, merge = vision.size("hidden_size"), vision.size("spatial_merge_size")
    merged, twice, wide = hidden * merge**2, 2 * hidden, 4 * hidden
    if vision.size("temporal_patch_size", default=1) != 1:
        raise refusal("unsupported_model_key", key="temporal_patch_size", value=vision.get("temporal_patch_size"))
    return VisionShape(
        depth=vision.size("num_hidden_layers", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=vision.size("intermediate_size"),
        heads=vision.size("num_attention_heads", "attention_heads"),
        channels=vision.size("num_channels"),
        patch=vision.size("patch_size"),
        merge=merge,
        joined_qkv=False,
        patch_bias=True,
        # The first position is that of a class token, which images do not have.
        positions=(vision.size("max_image_size") // vision.size("patch_size")) ** 2 + 1,
        projector=(),
        projector_operators=(
            Norm(width=merged, parameters=hidden),
            Linear(name="proj_conv", inputs=merged, outputs=twice, share="whole", bias=twice, after_norm=True),
            Activation(width=twice, gated=False, module="mlp"),
            Linear(name="proj_out", inputs=twice, outputs=wide, share="whole", bias=wide),
            Linear(name="mlp", inputs=wide, outputs=text_hidden, share="whole", bias=text_hidden, after_norm=True),
            Norm(width=text_hidden, parameters=text_hidden),
        ),
        # The vectors of the ends of rows, of both ends of an image, and one that nothing reads.
        projector_other=wide + 3 * text_hidden,
    )


def step_tower(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """modeling_step3p7.py: two convolutions join 4 x 4 patches. The view of the whole image is counted, and not the
    tiles of 504 pixels into which the processor also cuts a large one."""
    hidden = vision.size("hidden_size", "width")
    patch = edge(vision, "patch_size")
    positions = (edge(vision, "image_size") // patch) ** 2
    pixels = vision.size("num_channels") * patch**2
    rows, inputs, flops, kept, weights = 1.0, hidden, 0.0, 0.0, 0
    for stride in _STRIDES:
        rows /= stride**2
        flops += rows * 2 * 9 * inputs * 2 * inputs
        kept += rows * 2 * inputs
        weights += 9 * inputs * 2 * inputs + 2 * inputs
        inputs *= 2
    convolutions = Mixing(
        name="convolutions",
        parameters=weights,
        flops=flops,
        saved_bytes=2 * (hidden + kept),
        moved_bytes=2 * (hidden + 2 * kept),
        kernels=2,
    )
    bias = text_hidden if model.flag("projector_bias") else 0
    return VisionShape(
        depth=vision.size("num_hidden_layers", "layers", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=_ffn(vision, hidden),
        heads=vision.size("num_attention_heads", "heads"),
        channels=vision.size("num_channels"),
        patch=patch,
        positions=positions,
        pooled=16,
        image_patches=positions,
        joined_qkv=False,
        stem=(Linear(name="patch", inputs=pixels, outputs=hidden, share="whole", after_norm=True), convolutions),
        kept=round(hidden + kept),
        # The scales of what a block adds.
        block_other=2 * hidden,
        # The norm before the blocks.
        other=2 * hidden,
        projector=(),
        projector_operators=(
            Linear(name="projector", inputs=inputs, outputs=text_hidden, share="whole", bias=bias, after_norm=True),
        ),
    )


def _ffn(vision: Config, hidden: int) -> int:
    """Return the width of the FFN. Its ratio to the hidden size replaces intermediate_size."""
    ratio = vision.get("mlp_ratio")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 1 <= hidden * ratio < hidden * 1024:
        raise refusal("bad_model_key", key="mlp_ratio", value=ratio)
    return int(hidden * ratio)
