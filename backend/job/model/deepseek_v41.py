"""DeepSeek-V4.1: layers that share the compressed entries of a few of them, n-grams, draft layers, and its tower.

transformers has no class for it. It was read from mcore-bridge 1.6.5 model/mm_gpts/deepseek_v41.py and
model/modules/{dspark,engram}.py, and every size from the headers of its weights (benchmarks/data/own_code.json). It
gives the parameters only.
"""

from dataclasses import replace

from backend.job.model.compressed_shape import CompressedAttention, Compressor, EntryIndexer
from backend.job.model.config import Config, refusal
from backend.job.model.plain_towers import MOST_LAYERS
from backend.job.model.shape import Experts, LayerShape, Ngrams
from backend.job.model.sparse import clamping, mixing_streams
from backend.job.model.vision_shape import Projection, VisionShape

OWN, OWN_INDEX = "kv_source_layer_ids", "index_source_layer_ids"
MOST_ROWS = 10**10
"""Limit on the rows of a table of n-grams."""


def shared_layer(config: Config, layer: LayerShape, index: int, layers: int) -> LayerShape:
    """Return a layer: those of `kv_source_layer_ids` compress entries, which the layers after them read, and those of
    `index_source_layer_ids` choose them. The router has a second bias of every expert, for tokens of images."""
    attention, ffn = layer.attention, layer.ffn
    if not isinstance(ffn, Experts) or not isinstance(attention, CompressedAttention):
        raise refusal("unsupported_model_key", key="mlp_layer_types", value=config.get("mlp_layer_types"))
    ratios = config.indexes("compress_ratios")
    if len(ratios) < layers or not {*ratios} <= {0, 1, 2}:
        raise refusal("bad_model_key", key="compress_ratios", value=list(ratios))
    attention = replace(
        attention,
        compressor=_compressor(config, ratios[index]) if index in config.indexes(OWN) else None,
        indexer=_indexer(config, index),
        shares_entries=True,
    )
    layer = replace(layer, attention=attention, ngrams=_ngrams(config, index), other=layer.other + ffn.count)
    return replace(mixing_streams(config, clamping(layer)), streams_averaged=True)


def _compressor(config: Config, rate: int) -> Compressor:
    """Return what makes an entry of so many tokens, without a bias of each place; an entry of one token needs no
    weights."""
    if not rate:
        raise refusal("bad_model_key", key=OWN, value=list(config.indexes(OWN)))
    return Compressor(width=config.size("head_dim"), rate=rate, overlaps=False, has_places=False, weighs=rate > 1)


def _indexer(config: Config, index: int) -> EntryIndexer | None:
    """Return what chooses entries. Only a layer that compresses them makes the keys, of the entries."""
    if index not in config.indexes(OWN_INDEX):
        return None
    owns = index in config.indexes(OWN)
    return EntryIndexer(
        heads=config.size("index_n_heads"),
        width=config.size("index_head_dim"),
        compressor=None,
        key_inputs=config.size("head_dim") if owns else 0,
    )


def _ngrams(config: Config, index: int) -> Ngrams | None:
    """Return the n-grams of a layer, with two norms and no convolution."""
    layers, rows = config.indexes("engram_layer_ids"), config.indexes("engram_num_embeddings")
    if len(layers) != len(rows) or not all(0 < each <= MOST_ROWS for each in rows):
        raise refusal("bad_model_key", key="engram_num_embeddings", value=list(rows))
    if index not in layers:
        return None
    width = config.size("engram_head_dim")
    heads = (config.size("engram_max_ngram_size") - 1) * config.size("engram_n_heads")
    return Ngrams(width=heads * width, table=rows[layers.index(index)] * width, convolution=0, norms=2)


def draft_weights(config: Config, hidden: int, _layers: int) -> int:
    """Return the weights of DSpark: draft layers with experts of their own, a projection of the outputs of some layers,
    and two heads. They never run in training, but mcore-bridge builds them."""
    layers = config.size("num_nextn_predict_layers", default=0)
    if not layers:
        return 0
    heads, d, rank = config.size("num_attention_heads"), config.size("head_dim"), config.size("q_lora_rank")
    o_rank, groups, n = config.size("o_lora_rank"), config.size("o_groups"), config.size("hc_mult")
    experts, width = config.size("dspark_n_routed_experts"), config.size("moe_intermediate_size")
    attention = (hidden + 1 + heads * d) * rank + (hidden + 1) * d + heads + (heads * d + groups * hidden) * o_rank
    outputs = (2 + n) * n
    streams = 2 * (outputs * (n * hidden + 1) + 3)
    ffn = experts * (hidden + 2) + 3 * hidden * width * (experts + config.size("n_shared_experts", default=0))
    joined, markov = len(config.indexes("dspark_target_layer_ids")), config.size("dspark_markov_rank")
    ends = joined * hidden**2 + 2 * hidden + 2 * config.size("vocab_size") * markov + hidden + markov
    return layers * (attention + streams + 2 * hidden + ffn) + ends


def tower(vision: Config, _model: Config, text_hidden: int) -> VisionShape:
    """Return DeepseekV41Vision. Three embeddings mark where an image begins, ends and has a new line."""
    hidden, merge = vision.size("hidden_size"), vision.size("downsample_ratio")
    return VisionShape(
        depth=vision.size("num_hidden_layers", largest=MOST_LAYERS),
        hidden=hidden,
        ffn=vision.size("intermediate_size"),
        heads=vision.size("num_attention_heads"),
        channels=3,
        patch=vision.size("patch_size"),
        merge=merge,
        gated=True,
        norm="scale",
        patch_bias=True,
        ffn_bias=False,
        # The norm after the blocks.
        other=hidden,
        projector=(
            Projection(hidden * merge**2, text_hidden, bias=True),
            Projection(text_hidden, text_hidden, bias=True),
        ),
        projector_other=3 * text_hidden,
    )
