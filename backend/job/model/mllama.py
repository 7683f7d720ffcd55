"""What differs in Mllama (Llama 3.2 Vision): layers with attention to images, and the tower that they read.

Read from modeling_mllama.py and configuration_mllama.py of transformers 5.6.
"""

from backend.job.model.config import Config, refusal
from backend.job.model.plain_towers import MOST_LAYERS, edge
from backend.job.model.vision_shape import Projection, VisionShape

CROSS = "cross_attention"

_CROSS_LAYERS = (3, 8, 13, 18, 23, 28, 33, 38)
_ASPECT_RATIOS = 8
"""Values that the configuration's class sets only in an instance."""
_SPARE_TOKENS = 8
"""Rows of the embedding beyond the vocabulary: `<|image|>` is one of them, and the output layer has none of them."""
_MULTIPLE = 8
"""The tower pads the patches of a tile to a multiple of this number."""


def mllama_layer_types(config: Config, layers: int) -> list[str]:
    """Return the types of layers: those that config.json lists attend to images, and not to tokens."""
    listed = config.indexes("cross_attention_layers")
    crossing = listed if config.get("cross_attention_layers") is not None else _CROSS_LAYERS
    return [CROSS if index in crossing else "full_attention" for index in range(layers)]


def mllama_other(_config: Config, hidden: int, _layers: int) -> int:
    """Return the weights of the embedding's rows beyond the vocabulary."""
    return _SPARE_TOKENS * hidden


def mllama_tower(vision: Config, _model: Config, text_hidden: int) -> VisionShape:
    """Return the tower. An image has max_num_tiles tiles, because the processor pads it to them.

    Local and gated global blocks are counted as one kind. The gates of the global ones, the norms around the blocks and
    the positions of tiles are in `other` and `kept`.
    """
    hidden, tiles, patch = vision.size("hidden_size"), vision.size("max_num_tiles"), edge(vision, "patch_size")
    tile = (edge(vision, "image_size") // patch) ** 2 + 1
    gated = vision.size("num_global_layers", default=0, largest=MOST_LAYERS)
    listed = vision.get("supported_aspect_ratios")
    if listed is not None and not isinstance(listed, list):
        raise refusal("bad_model_key", key="supported_aspect_ratios", value=listed)
    # Tables of the positions of patches in tiles, and of tiles before and after the local blocks. An image has one row.
    tables = (1 + (_ASPECT_RATIOS if listed is None else len(listed))) * tiles * (tile + 2) * hidden
    # The class token, the positions in a tile and the two norms; a gate for each of the three tables.
    other = (1 + tile + 4) * hidden + 3
    return VisionShape(
        depth=vision.size("num_hidden_layers", largest=MOST_LAYERS) + gated,
        hidden=hidden,
        ffn=vision.size("intermediate_size"),
        heads=vision.size("attention_heads", "num_attention_heads"),
        channels=vision.size("num_channels"),
        patch=patch,
        projector=(Projection(vision.size("vision_output_dim"), text_hidden, bias=True),),
        image_patches=tiles * -(-tile // _MULTIPLE) * _MULTIPLE,
        keys=tiles * tile,
        checkpointed=False,
        joined_qkv=False,
        qkv_bias=False,
        output_bias=False,
        other=tables + other + 2 * gated,
        kept=(3 + 2 * gated) * hidden,
    )
