"""Sparse attention, whose keys are chosen by an indexer: which layers have one, from config.json.

Each reader names the file of transformers that it was read from, with its version.
"""

from dataclasses import replace

from backend.job.model.config import Config, refusal
from backend.job.model.shape import Indexer, LayerShape, Mla

_LETTERS = {"F": "full", "S": "shared"}


def _sparse(config: Config, layer: LayerShape, *, has_indexer: bool, spreads_keys: bool) -> LayerShape:
    """Return the layer with sparse latent attention. The indexer reads what the query's down-projection returns."""
    if not isinstance(layer.attention, Mla):
        raise refusal("missing_model_key", key="kv_lora_rank")
    config.size("q_lora_rank")
    heads, head_dim = config.size("index_n_heads"), config.size("index_head_dim")
    indexer = Indexer(heads=heads, head_dim=head_dim, spreads_keys=spreads_keys) if has_indexer else None
    return replace(layer, attention=replace(layer.attention, masked=True, indexer=indexer))


def deepseek_layer(config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """modeling_deepseek_v32.py of 5.19: every layer has an indexer."""
    return _sparse(config, layer, has_indexer=True, spreads_keys=True)


def axk2_layer(config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """modeling_axk2.py of 5.19: every layer has an indexer, a gate of the attention, and gates of its norms."""
    layer = _sparse(config, layer, has_indexer=True, spreads_keys=True)
    if not isinstance(layer.attention, Mla):
        raise refusal("missing_model_key", key="kv_lora_rank")
    rank = config.size("gated_norm_rank")
    return replace(layer, attention=replace(layer.attention, gate="query"), norm_gate=rank)


def glm_layer(config: Config, layer: LayerShape, index: int, layers: int) -> LayerShape:
    """modeling_glm_moe_dsa.py of 5.6 and 5.19: a layer of type `shared` reads the mask of the layer before it.

    5.6 builds an indexer in such a layer, too, and never runs it; 5.19 does not, and neither does this description.
    """
    kind = _indexer_types(config, layers)[index]
    return _sparse(config, layer, has_indexer=kind == "full" or index == 0, spreads_keys=False)


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
    if not isinstance(listed, list) or len(listed) < layers or not {*listed} <= {*_LETTERS.values()}:
        raise refusal("bad_model_key", key="indexer_types", value=listed)
    return listed
