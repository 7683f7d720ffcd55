"""What the model families of transformers have in common and what differs: facts that config.json does not contain.

Each entry is read from src/transformers/models/<name>/modeling_<name>.py and configuration_<name>.py of transformers
5.6. presets/config_defaults.json has the values that a config.json may omit (tools/config_defaults.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from backend.job.model.config import Config
from backend.job.model.shape import Norms

LayerTypes = Callable[[Config, int], list[str]]
"""Returns the type of every layer, as transformers names it in `layer_types`."""

SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"


def _every_full(_config: Config, layers: int) -> list[str]:
    return [FULL] * layers


def _full_each(key: str, usual: int, other: str) -> LayerTypes:
    """Return layer types in which every n-th layer has full attention; `key` may give n."""

    def types(config: Config, layers: int) -> list[str]:
        period = config.size(key, default=usual)
        return [other if (index + 1) % period else FULL for index in range(layers)]

    return types


def _alternating(_config: Config, layers: int) -> list[str]:
    return [SLIDING if index % 2 == 0 else FULL for index in range(layers)]


def _all_sliding(config: Config, layers: int) -> list[str]:
    return [SLIDING if config.get("sliding_window") else FULL] * layers


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Facts of a model_type that config.json does not contain."""

    qkv_bias: bool = False
    """Whether there is always a bias, whatever attention_bias says."""
    output_bias: bool = True
    """Whether attention_bias applies to the output projection."""
    qk_norm: Literal["none", "heads", "whole"] = "none"
    gate: bool = False
    """Whether the query projection also gives a gate of the attention's output."""
    sinks: bool = False
    norms: Norms = "before"
    norm_bias: bool = False
    gated: bool | None = None
    """Whether the FFN has three matrices; None if hidden_act tells."""
    ffn_bias: bool = False
    shared_gate: bool = False
    router_bias: bool = False
    joined: bool = True
    """As in GatedDeltaNet."""
    layer_types: LayerTypes = _every_full
    """Types of layers if config.json does not list them."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Other names of keys, by the name that most families use."""


FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(output_bias=False, layer_types=_all_sliding),
    "mixtral": Family(output_bias=False, layer_types=_all_sliding),
    "qwen2": Family(qkv_bias=True, output_bias=False),
    "qwen2_moe": Family(qkv_bias=True, output_bias=False, shared_gate=True),
    "qwen2_vl": Family(qkv_bias=True, output_bias=False),
    "qwen2_5_vl": Family(qkv_bias=True, output_bias=False),
    "qwen3": Family(qk_norm="heads"),
    "qwen3_moe": Family(qk_norm="heads"),
    "qwen3_vl": Family(qk_norm="heads"),
    "qwen3_vl_moe": Family(qk_norm="heads"),
    "qwen3_next": Family(
        qk_norm="heads", gate=True, shared_gate=True, layer_types=_full_each("full_attention_interval", 4, LINEAR)
    ),
    "qwen3_5": Family(
        qk_norm="heads", gate=True, joined=False, layer_types=_full_each("full_attention_interval", 4, LINEAR)
    ),
    "qwen3_5_moe": Family(
        qk_norm="heads",
        gate=True,
        shared_gate=True,
        joined=False,
        layer_types=_full_each("full_attention_interval", 4, LINEAR),
    ),
    "deepseek_v2": Family(),
    "deepseek_v3": Family(router_bias=True),
    "glm4_moe": Family(output_bias=False, router_bias=True),
    "gemma": Family(gated=True),
    "gemma2": Family(gated=True, norms="both", layer_types=_alternating),
    "gemma3": Family(
        gated=True, norms="both", qk_norm="heads", layer_types=_full_each("sliding_window_pattern", 6, SLIDING)
    ),
    "gpt_oss": Family(sinks=True, layer_types=_alternating),
}
"""By model_type of the text model, without the suffix `_text`."""
VISION_FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
