"""What may differ between model families: facts that config.json does not contain."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.job.model.attention_shape import Gate, QkNorm
from backend.job.model.config import Config
from backend.job.model.linear_shape import GatedDeltaNet, StateSpace
from backend.job.model.operators import NormWeights, Sinks
from backend.job.model.shape import LayerShape, Mixer, Norms

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
INDEXED = "indexed_attention"
"""Full attention whose keys an indexer chooses; the family adds the indexer."""

LayerTypes = Callable[[Config, int], list[str]]
"""Returns the type of every layer, as transformers names it in `layer_types`."""
Flag = bool | str
"""A fact, or the key of config.json that says it."""


def all_full(_config: Config, layers: int) -> list[str]:
    """Return full attention for every layer."""
    return [FULL] * layers


def qwen_sliding(config: Config, layers: int) -> list[str]:
    """Return Qwen2's types of layers: sliding windows, if the config has them, after the first layers."""
    first = config.size("max_window_layers", default=0) if config.flag("use_sliding_window") else layers
    return [SLIDING if index >= first else FULL for index in range(layers)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Facts of a model_type that config.json does not contain."""

    keys: Mapping[str, str] = field(default_factory=dict)
    """The family's name of a key, by the name that most families use."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of keys that its config.json may have, and the names that most families use."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that config.json may omit, by the family's names, of a type that transformers does not have."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Values without which its layers differ from those described here. A key that is absent has this value."""
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the modules of a projection (model_layers.py), if they are not those of Llama."""
    qkv_bias: Flag = "attention_bias"
    output_bias: Flag = "attention_bias"
    qk_norm: QkNorm = "none"
    gate: Gate = "none"
    """As in FullAttention."""
    sinks: Sinks = ""
    value_heads_divide_hidden: bool = False
    """Whether v_head_dim may be absent, and the value heads of latent attention then share the hidden size."""
    layer_types: LayerTypes = all_full
    """Types of layers if config.json does not list them."""
    mixer: Callable[[Config, str], Mixer | None] | None = None
    """Returns what mixes tokens in a layer of a type that the family describes itself; None for other types."""
    joined: bool = True
    """As in GatedDeltaNet."""
    norms: Norms = "before"
    norm: NormWeights = "scale"
    fp32_norms: bool = False
    """As `in_fp32` in Norm."""
    gated: bool | None = None
    """Whether the FFN has three matrices; None if hidden_act tells."""
    ffn_bias: Flag = "mlp_bias"
    ffn_is_shared: bool = False
    """Whether layers with experts have an FFN of intermediate_size beside them (HunYuan)."""
    ffn_width: Callable[[Config], int] | None = None
    """Returns the width of the FFN if it is not intermediate_size."""
    ffn_ratio: int = 0
    """Width of the FFN / hidden size, if config.json does not give it."""
    leading_dense: int = 0
    """Dense layers before those with experts, if config.json does not say."""
    expert_bias: bool = False
    clamped: bool = False
    shared_gate: bool = False
    router_bias: bool = False
    """As in Experts."""
    dense_experts: bool = False
    """As `dense` in Experts."""
    fp32_routing: bool = False
    """As in Experts: transformers' router computes its weights in fp32 and does not cast them."""
    fp32_router: bool = False
    """As in Experts; families.py FP32_ROUTERS sets it."""
    single_experts: bool = False
    """As `single` in Experts."""
    leaf_experts: bool = False
    """As `leaf` in Experts."""
    own_mtp: Callable[[Config], int] | None = None
    """Returns the layers for multi-token prediction that the model's own code builds."""
    runs_mtp: bool = False
    """Whether this code runs them."""
    positions: str = ""
    """The key with the number of learned positions, if there are any."""
    extra_positions: int = 0
    head_bias: bool = False
    """Whether the output layer has a bias."""
    delta_net: Callable[[Config], GatedDeltaNet] | None = None
    """Returns the linear attention, if its keys of config.json are not those of Qwen3-Next."""
    state_space: Callable[[Config, int], StateSpace] | None = None
    """Returns the state space of the layers that have one, from the config and the hidden size."""
    activation_parameters: int = 0
    """Weights of the activation of a layer's FFN."""
    refine: Callable[[Config, LayerShape, int, int], LayerShape] | None = None
    """Returns a layer as it is at its place, from the config, the layer, its index and the number of layers."""
    other: Callable[[Config, int, int], int] | None = None
    """Returns the weights beside the layers, from the config, the hidden size and the number of layers."""
    only_counted: bool = False
    fp32_residual: bool = False
    """As in ModelShape (shape.py)."""
    embedding_norm: bool = False
    """Whether a norm follows the embedding."""
    bare_embedding_norm: bool = False
    """As in ModelShape."""
    stores_scores: bool = False
    """As in FullAttention."""
    never_tied: bool = False
    """Whether the output layer has its own weight, whatever the config says."""
