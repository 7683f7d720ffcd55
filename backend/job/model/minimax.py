"""Layers of MiniMax-M3: attention to blocks of keys, and experts whose function clips large inputs.

Read from configuration_minimax_m3_vl.py and modeling_minimax_m3_vl.py of transformers 5.19.
"""

from dataclasses import replace

from backend.job.model.attention_shape import BlockIndexer, FullAttention
from backend.job.model.config import Config, part, refusal
from backend.job.model.family import FULL
from backend.job.model.shape import Experts, Ffn, LayerShape

SPARSE = "minimax_m3_sparse"
_KEYS = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
}
"""Keys, and their names in the part `sparse_attention_config` of MiniMax's own config.json."""


def minimax_types(config: Config, layers: int) -> list[str]:
    """Return the layers' types: those that the part `sparse_attention_config` lists, or full attention."""
    listed = _own(config).get("sparse_attention_freq")
    if listed is None:
        return [FULL] * layers
    if not isinstance(listed, list) or any(sparse not in (0, 1) for sparse in listed):
        raise refusal("bad_model_key", key="sparse_attention_freq", value=listed)
    return [SPARSE if sparse else FULL for sparse in listed]


def minimax_mixer(config: Config, name: str) -> FullAttention | None:
    """Return sparse attention; None for another type of layer."""
    if name != SPARSE:
        return None
    own = _own(config)
    index_heads, index_dim, block = (own.size(old) if own.has(old) else config.size(key) for key, old in _KEYS.items())
    heads = config.size("num_attention_heads")
    if heads % index_heads:
        raise refusal("bad_model_key", key="index_n_heads", value=index_heads)
    return FullAttention(
        heads=heads,
        kv_heads=config.size("num_key_value_heads", default=heads),
        head_dim=config.size("head_dim"),
        qk_norm="heads",
        masked=True,
        indexer=BlockIndexer(heads=index_heads, head_dim=index_dim, block=block, masks_heads=True),
    )


def minimax_layer(_config: Config, layer: LayerShape, _index: int, _layers: int) -> LayerShape:
    """Return a layer whose dense FFN, experts and shared expert clip large inputs of their function."""
    ffn = layer.ffn
    if isinstance(ffn, Ffn):
        return replace(layer, ffn=replace(ffn, clamped=True))
    if isinstance(ffn, Experts):
        return replace(layer, ffn=replace(ffn, clamped=True, shared_clamped=True))
    return layer


def _own(config: Config) -> Config:
    return Config(part(config.values, "sparse_attention_config") or {})
