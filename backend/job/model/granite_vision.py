"""The tower of Granite 4 Vision, and its projectors, each a Q-Former over windows of patches.

Read from transformers 5.19 configuration_granite4_vision.py, modeling_granite4_vision.py and blip_2/modeling_blip_2.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backend.job.model.config import Config, part, refusal
from backend.job.model.operators import Activation, Keep, Linear, Mixing, Norm, Operator
from backend.job.model.plain_towers import edge, most_tiles, plain_tower
from backend.job.model.vision_shape import ProjectorLayer, VisionShape

_FORMER: Mapping[str, Any] = {
    "num_hidden_layers": 12, "intermediate_size": 3072, "hidden_size": 768, "num_attention_heads": 12,
    "encoder_hidden_size": 1408, "cross_attention_frequency": 2, "use_qformer_text_input": False,
}  # fmt: skip
"""Values of Blip2QFormerConfig."""
_SPATIAL, _MOST_PROJECTORS, _MOST_SIDE = 4, 512, 512
"""Projectors of every second patch, one for each corner; and limits of a config.json that is read."""


def granite_tower(vision: Config, model: Config, text_hidden: int) -> VisionShape:
    """Return the tower. The projectors feed several layers of the decoder. All of them read all tiles of an image."""
    query, window = _sides(model)
    hidden = vision.size("hidden_size")
    layers = model.get("deepstack_layer_map")
    if not isinstance(layers, list | tuple) or len(layers) > _MOST_PROJECTORS:
        raise refusal("bad_model_key", key="deepstack_layer_map", value=layers)
    count = len(layers) + _SPATIAL
    layers_of_one = _layers(_former(model, hidden), hidden, query**2, window**2)
    tower = plain_tower(
        vision,
        "clip_vision_model",
        projector=(),
        pooled=(window // query) ** 2,
        projector_operators=_projector(layers_of_one, hidden, (window // query) ** 2, text_hidden) * count,
        projector_layers=layers_of_one * count,
        # Queries and positions of each, and the embedding of a new line.
        projector_other=count * (query**2 + window**2) * hidden + text_hidden,
    )
    tiles = 1 + most_tiles(model, edge(vision, "image_size"))
    return replace(tower, image_patches=tiles * tower.image_patches, window=tower.image_patches)


def _sides(model: Config) -> tuple[int, int]:
    """Return the edges of a window, in queries and in patches, from a rate such as "4/8"."""
    rate = model.get("downsample_rate")
    sides = str(rate).split("/")
    if len(sides) != 2 or not all(side.isdecimal() and 0 < int(side) <= _MOST_SIDE for side in sides):
        raise refusal("bad_model_key", key="downsample_rate", value=rate)
    query, window = (int(side) for side in sides)
    if window % query:
        raise refusal("unsupported_model_key", key="downsample_rate", value=rate)
    return query, window


def _former(model: Config, hidden: int) -> Config:
    """Return the Q-Former. Without a part of its own it has one layer of the tower's width."""
    own = part(model.values, "qformer_config")
    if own is None:
        own = {"num_hidden_layers": 1, "hidden_size": hidden, "encoder_hidden_size": hidden,
               "num_attention_heads": max(1, hidden // 64), "cross_attention_frequency": 1}  # fmt: skip
    former = Config(own, _FORMER)
    for key in ("hidden_size", "encoder_hidden_size"):
        if former.size(key) != hidden:
            raise refusal("unsupported_model_key", key=key, value=former.get(key))
    if former.flag("use_qformer_text_input"):
        raise refusal("unsupported_model_key", key="use_qformer_text_input", value=True)
    return former


def _layers(former: Config, hidden: int, queries: int, keys: int) -> tuple[ProjectorLayer, ...]:
    """Return the layers of the Q-Former for windows of so many queries and patches (Blip2QFormerLayer). The patches
    are one tensor, so only the first layer's checkpoint adds them."""
    patches = keys // queries
    every = former.size("cross_attention_frequency")
    layers = []
    for index in range(former.size("num_hidden_layers", largest=_MOST_PROJECTORS)):
        operators = [*_self_attention(former, hidden, queries)]
        if index % every == 0:
            operators += [*_cross_attention(former, hidden, keys, patches)]
        operators += [*_ffn(hidden, former.size("intermediate_size"))]
        inputs = patches * hidden if index == 0 else 0
        layers.append(ProjectorLayer(operators=tuple(operators), hidden=hidden, inputs=inputs))
    return tuple(layers)


def _projector(layers: tuple[ProjectorLayer, ...], hidden: int, patches: int, out: int) -> tuple[Operator, ...]:
    """Return one projector, for every token that it makes of so many patches
    (Granite4VisionWindowQFormerDownsampler)."""
    return (
        Norm(width=patches * hidden, parameters=2 * hidden, layer_norm=True),
        *_dropout(patches * hidden),
        Norm(width=hidden, parameters=2 * hidden, layer_norm=True),
        *_dropout(hidden),
        *(operator for layer in layers for operator in layer.operators),
        *_dropout(hidden),
        Linear(name="out_linear", inputs=hidden, outputs=out, share="whole", bias=out, after_norm=True),
    )


def _dropout(width: int) -> tuple[Operator, ...]:
    """Return the mask of a dropout."""
    return (Keep(width=width, bytes=1),)


def _self_attention(former: Config, hidden: int, keys: int) -> tuple[Operator, ...]:
    """Return attention of the queries of a window to each other."""
    return (
        Linear(name="qkv", inputs=hidden, outputs=3 * hidden, share="whole", bias=3 * hidden, parts=3, after_norm=True),
        _core(former, hidden, keys, 1),
        *_added(hidden),
    )


def _cross_attention(former: Config, hidden: int, keys: int, patches: int) -> tuple[Operator, ...]:
    """Return attention of the queries to the patches of a window, of which each token projects as many as it joins."""
    return (
        Linear(name="query", inputs=hidden, outputs=hidden, share="whole", bias=hidden, after_norm=True),
        Linear(
            name="key_value",
            inputs=hidden,
            outputs=2 * hidden,
            share="whole",
            bias=2 * hidden,
            parts=2,
            active=patches,
            after_norm=True,
        ),
        # The other patches that both projections read.
        Keep(width=2 * (patches - 1) * hidden, weight_only=True),
        _core(former, hidden, keys, patches),
        *_added(hidden),
    )


def _core(former: Config, hidden: int, keys: int, patches: int) -> Mixing:
    """Return the attention itself, which keeps queries, keys, values and output."""
    saved = 2 * (2 + 2 * patches) * hidden + 4 * former.size("num_attention_heads")
    return Mixing(
        name="window_attention", parameters=0, flops=4 * hidden * keys, saved_bytes=saved, moved_bytes=saved, kernels=1
    )


def _added(hidden: int) -> tuple[Operator, ...]:
    """Return the projection of the output, and the norm after its sum with the input."""
    return (
        Linear(name="dense", inputs=hidden, outputs=hidden, share="whole", bias=hidden),
        *_dropout(hidden),
        Norm(width=hidden, parameters=2 * hidden, layer_norm=True),
    )


def _ffn(hidden: int, width: int) -> tuple[Operator, ...]:
    return (
        Linear(name="up", inputs=hidden, outputs=width, share="whole", bias=width, after_norm=True),
        Activation(width=width, gated=False, module="mlp"),
        Linear(name="down", inputs=width, outputs=hidden, share="whole", bias=hidden),
        *_dropout(hidden),
        Norm(width=hidden, parameters=2 * hidden, layer_norm=True),
    )
