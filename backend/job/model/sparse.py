"""Sparse attention, whose keys are chosen by an indexer: which layers have one, from config.json.

Each reader names the file of transformers that it was read from, with its version.
"""

from collections.abc import Mapping
from dataclasses import replace

from backend.job.model.attention_shape import Indexer, Mla
from backend.job.model.compressed_shape import CompressedAttention, Compressor, EntryIndexer
from backend.job.model.config import Config, refusal
from backend.job.model.family import INDEXED, LINEAR, SLIDING
from backend.job.model.linear_shape import GatedDeltaNet
from backend.job.model.qwen4 import MOST_STREAMS
from backend.job.model.shape import Experts, Ffn, LayerShape

SPARSELY, HEAVILY = "compressed_sparse_attention", "heavily_compressed_attention"
_RATES = {SPARSELY: 4, HEAVILY: 128}
"""Tokens of a compressed entry, if config.json does not say."""
_RATE_KEYS = {SPARSELY: "compress_rate_csa", HEAVILY: "compress_rate_hca"}
HASHED = "hash_moe"
HASHED_LAYERS = 3
"""Leading layers of which a table of all tokens chooses the experts, if config.json does not say."""
MOE_TYPES = ("moe", HASHED)
"""Types of experts in DeepSeek-V4: a router chooses them, or a table of all tokens."""
ROUNDS, MOST_ROUNDS = 20, 1000
"""Steps of Sinkhorn's algorithm if config.json does not say (hc_sinkhorn_iters in configuration_deepseek_v4.py and
configuration_glm5_next.py of 5.19), and the most of a config.json that is read."""
_LETTERS = {"F": "full", "S": "shared"}


CHOSEN_KEYS = 2048
"""Keys that an indexer chooses, if config.json does not say (index_topk in configuration_deepseek_v32.py,
configuration_glm_moe_dsa.py and configuration_axk2.py of 5.19)."""


def _sparse(
    config: Config, layer: LayerShape, *, has_indexer: bool, spreads_keys: bool, is_shared: bool = False
) -> Mla:
    """Return the layer's latent attention with an indexer, which reads what the query's down-projection returns."""
    if not isinstance(layer.attention, Mla):
        raise refusal("missing_model_key", key="kv_lora_rank")
    config.size("q_lora_rank")
    heads, head_dim = config.size("index_n_heads"), config.size("index_head_dim")
    chosen = config.size("index_topk", default=CHOSEN_KEYS)
    indexer = None
    if has_indexer:
        indexer = Indexer(heads=heads, head_dim=head_dim, spreads_keys=spreads_keys, chosen=chosen, is_shared=is_shared)
    return replace(layer.attention, masked=True, indexer=indexer)


def deepseek_layer(config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """modeling_deepseek_v32.py of 5.19: every layer has an indexer."""
    return replace(layer, attention=_sparse(config, layer, has_indexer=True, spreads_keys=True))


def axk2_layer(config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """modeling_axk2.py of 5.19: every layer has an indexer, a gate of the attention, and gates of its norms."""
    attention = _sparse(config, layer, has_indexer=True, spreads_keys=True)
    return replace(layer, attention=replace(attention, gate="query"), norm_gate=config.size("gated_norm_rank"))


def glm_layer(config: Config, layer: LayerShape, index: int, layers: int) -> LayerShape:
    """modeling_glm_moe_dsa.py of 5.6 and 5.19: a layer of type `shared` reads the mask of the layer before it.

    5.6 builds an indexer in such a layer, too, and never runs it; 5.19 does not, and neither does this description.
    """
    kinds = _indexer_types(config, layers)
    has_indexer, is_shared = kinds[index] == "full" or index == 0, "shared" in kinds
    attention = _sparse(config, layer, has_indexer=has_indexer, spreads_keys=False, is_shared=is_shared)
    return replace(layer, attention=attention)


def _indexer_types(config: Config, layers: int) -> list[str]:
    """configuration_glm_moe_dsa.py of 5.6, and of 5.19, which has the key index_skip_topk_offset."""
    listed, pattern = config.get("indexer_types"), config.get("index_topk_pattern")
    if listed is None and isinstance(pattern, str):
        listed = [_LETTERS.get(letter) for letter in pattern]
    elif listed is None and pattern is not None:
        listed = pattern
    if listed is None:
        period, offset = config.size("index_topk_freq", default=1), config.size("index_skip_topk_offset", default=2)
        listed = ["full" if max(index - offset + 1, 0) % period == 0 else "shared" for index in range(layers)]
    return _checked_types(listed, layers)


def _checked_types(listed: object, layers: int) -> list[str]:
    if not isinstance(listed, list) or len(listed) < layers or not {*listed} <= {*_LETTERS.values()}:
        raise refusal("bad_model_key", key="indexer_types", value=listed)
    return listed


def hy_layer(config: Config, layer: LayerShape, index: int, layers: int) -> LayerShape:
    """modeling_hy_v4.py of 5.19: streams, sinks, and a gate of the attention; a layer in four has an indexer."""
    listed = config.get("indexer_types")
    if listed is None:
        listed = ["full" if each == 0 or (each - 1) % 4 == 0 else "shared" for each in range(layers)]
    has_indexer = _checked_types(listed, layers)[index] == "full"
    ffn = layer.ffn
    return replace(
        layer,
        ffn=replace(ffn, clamped=True, clamps_silu=True) if isinstance(ffn, Experts) else ffn,
        attention=replace(_sparse(config, layer, has_indexer=has_indexer, spreads_keys=True), gate="own", sinks=True),
        streams=config.size("hc_mult", largest=MOST_STREAMS),
    )


def pooled_types(_config: Config, layers: int) -> list[str]:
    """configuration_glm5_next.py of 5.19: three layers with linear attention, and one with sparse attention."""
    return [INDEXED if index % 4 == 3 else LINEAR for index in range(layers)]


def pooled_layer(config: Config, layer: LayerShape, index: int, layers: int) -> LayerShape:
    """modeling_glm5_next.py of 5.19: streams that a matrix mixes, whose mean is the output of the last layer. The
    indexer scores groups of keys, of which it makes one key by weights that it projects."""
    layer = replace(mixing_streams(config, clamping(layer)), streams_averaged=True)
    if isinstance(layer.attention, GatedDeltaNet):
        return layer
    kinds = _indexer_types(config, layers)
    attention = _sparse(
        config, layer, has_indexer=kinds[index] == "full", spreads_keys=False, is_shared="shared" in kinds
    )
    if attention.indexer is None:
        return replace(layer, attention=attention)
    indexer = replace(attention.indexer, pooled=config.size("index_kpool"))
    return replace(layer, attention=replace(attention, indexer=indexer))


def compressed_types(config: Config, layers: int) -> list[str]:
    """configuration_deepseek_v4.py of 5.19: the rates of the layers, or two layers with heavy compression and then
    both kinds in turn."""
    rates = config.get("compress_ratios")
    if rates is None:
        return [HEAVILY if index < 2 or index % 2 == 0 else SPARSELY for index in range(layers)]
    names = {0: SLIDING, **{rate: name for name, rate in _RATES.items()}}
    if not isinstance(rates, list) or not all(type(rate) is int and rate in names for rate in rates):
        raise refusal("bad_model_key", key="compress_ratios", value=rates)
    return [names[rate] for rate in rates]


def compressed_mixer(config: Config, name: str) -> CompressedAttention:
    """modeling_deepseek_v4.py of 5.19."""
    if name not in (SLIDING, SPARSELY, HEAVILY):
        raise refusal("unsupported_model_key", key="layer_types", value=name)
    heads, d, groups = config.size("num_attention_heads"), config.size("head_dim"), config.size("o_groups")
    if heads * d % groups:
        raise refusal("bad_model_key", key="o_groups", value=groups)
    compressor, indexer = None, None
    if name != SLIDING:
        compressor = Compressor(width=d, rate=_rate(config, name), overlaps=name == SPARSELY)
    if compressor and name == SPARSELY:
        width = config.size("index_head_dim")
        own = replace(compressor, width=width)
        indexer = EntryIndexer(heads=config.size("index_n_heads"), width=width, compressor=own)
    return CompressedAttention(
        heads=heads,
        head_dim=d,
        q_lora=config.size("q_lora_rank"),
        groups=groups,
        o_lora=config.size("o_lora_rank"),
        window=config.size("sliding_window"),
        compressor=compressor,
        indexer=indexer,
    )


def _rate(config: Config, name: str) -> int:
    """Return the tokens of an entry of a layer of this type."""
    if config.get(_RATE_KEYS[name]) is not None:
        return config.size(_RATE_KEYS[name])
    rates = config.get("compress_rates", _RATES)
    rate = rates.get(name) if isinstance(rates, Mapping) else None
    if type(rate) is not int or rate < 1:
        raise refusal("bad_model_key", key="compress_rates", value=rates)
    return rate


def _hashed_layers(config: Config) -> int:
    return HASHED_LAYERS if config.get("num_hash_layers") is None else config.size("num_hash_layers", default=0)


def compressed_layer(config: Config, layer: LayerShape, index: int, layers: int) -> LayerShape:
    """modeling_deepseek_v4.py of 5.19: streams that a matrix mixes, and experts that a table chooses in the first
    layers, whose router has no bias."""
    ffn = layer.ffn
    if not isinstance(ffn, Experts):
        raise refusal("unsupported_model_key", key="mlp_layer_types", value=config.get("mlp_layer_types"))
    hashed = config.get("mlp_layer_types") or [HASHED] * _hashed_layers(config)
    if index < len(hashed) and hashed[index] == HASHED:
        ffn = replace(ffn, router_bias=False)
    return mixing_streams(config, clamping(replace(layer, ffn=ffn)))


def mixing_streams(config: Config, layer: LayerShape) -> LayerShape:
    """Return a layer with streams that a doubly stochastic matrix mixes."""
    rounds = config.size("hc_sinkhorn_iters", default=ROUNDS, largest=MOST_ROUNDS)
    return replace(layer, streams=config.size("hc_mult", largest=MOST_STREAMS), stream_rounds=rounds)


def clamping(layer: LayerShape) -> LayerShape:
    """Return a layer whose dense FFN, experts and shared expert clip the inputs of SwiGLU."""
    ffn = layer.ffn
    if isinstance(ffn, Ffn):
        return replace(layer, ffn=replace(ffn, clamped=True, clamps_silu=True))
    if isinstance(ffn, Experts):
        return replace(layer, ffn=replace(ffn, clamped=True, shared_clamped=True, clamps_silu=True))
    return layer
