"""Layers of Kimi Linear: Kimi Delta Attention between layers with latent attention.

Read from configuration_kimi_linear.py and modeling_kimi_linear.py of transformers 5.19.
"""

from backend.job.model.config import Config, part, refusal
from backend.job.model.family import FULL, LINEAR
from backend.job.model.linear_shape import GatedDeltaNet, kimi_delta

_KEYS = {
    "linear_head_dim": "head_dim",
    "linear_num_heads": "num_heads",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}
"""Keys, and their names in the part `linear_attn_config` of Moonshot's own config.json."""


def kimi_types(config: Config, layers: int) -> list[str]:
    """Return the layers' types. Those in `linear_attn_config` count from 1."""
    own = _own(config)
    if not own.has("full_attn_layers") or not own.has("kda_layers"):
        return [FULL if index and index % 4 == 0 else LINEAR for index in range(layers)]
    full, linear = {*own.indexes("full_attn_layers")}, {*own.indexes("kda_layers")}
    if full & linear or full | linear != {*range(1, layers + 1)}:
        raise refusal("bad_model_key", key="linear_attn_config", value=dict(own.values))
    return [FULL if index + 1 in full else LINEAR for index in range(layers)]


def kimi_delta_net(config: Config) -> GatedDeltaNet:
    """Return Kimi Delta Attention. The rank of its projections is the width of a head."""
    own = _own(config)
    width, heads, convolution = (own.size(name) if own.has(name) else config.size(key) for key, name in _KEYS.items())
    return kimi_delta(heads, width, convolution, rank=width)


def _own(config: Config) -> Config:
    return Config(part(config.values, "linear_attn_config") or {})
