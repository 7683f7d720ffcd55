"""A model as layer kinds with their counts. Parameters, activations and FLOPs are computed from it.

model_layers.py creates it from a model's shape. A layer kind is the sequence of its operators. Widths are in elements
per token. `share` says how tensor parallelism divides a weight: `split` over TP, `whole` on every TP rank, `expert`
over EP x ETP.

Layer kinds are compared by identity (eq=False). model_layers returns one object for each shape. Sums over its operators
are cached by this object, because hashing its fields would cost more than the sums.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeVar

Share = Literal["split", "whole", "expert"]

CHUNK = 64
"""Tokens of a chunk of linear attention (fla/ops/gated_delta_rule/chunk.py, and transformers' chunk_size)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """A normalisation of `width` elements per token."""

    width: int
    parameters: int
    detached: bool = False
    """Whether it is a separate module in Transformer Engine, and not fused into the next projection."""
    heads: bool = False
    """Whether it normalises each attention head; its output is then the input of the attention."""
    layer_norm: bool = False
    """Whether it is a LayerNorm, which torch computes in one kernel, or an RMSNorm in several kernels."""
    cast: bool = False
    """Whether it is a LayerNorm with casts around it (llm-foundry's LPLayerNorm), for language models without a
    gate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """A projection; its Megatron form may join several Hugging Face modules."""

    name: str
    inputs: int
    outputs: int
    share: Share
    bias: int = 0
    """Elements of bias, split like the outputs."""
    whole_bias: int = 0
    """Elements of bias on every TP rank (row-parallel layers)."""
    copies: int = 1
    """Number of experts, each with its own copy."""
    active: int = 1
    """Number of copies that process one token."""
    parts: int = 1
    """Number of Hugging Face modules that it joins."""
    after_norm: bool = False
    """Its input is the output of a norm over the residual stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """The attention core, without its projections."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    causal: bool = True
    window: int = 0
    """Tokens in the window of sliding attention; 0 if a token sees all before it."""
    packed: bool = False
    """Query, key and value are views of the output of one projection, which therefore stays allocated."""
    latent: bool = False
    """Query, key and value are computed from low-rank inputs that are saved too (MLA)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recurrence:
    """The core of linear attention with a gated delta rule, and the convolution before it, without projections."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: int
    """Tokens of the causal convolution over queries, keys and values."""

    @property
    def channels(self) -> int:
        """Return the channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def parameters(self) -> int:
        """Return the weights of the convolution, and the decay and the step bias of every value head."""
        return self.channels * self.convolution + 2 * self.value_heads

    @property
    def flops(self) -> float:
        """Return the forward operations per token of the chunked rule.

        Counted in transformers' modeling_qwen3_next.py torch_chunk_gated_delta_rule, for each head: six products of
        key_dim x value_dim and chunk x width; the triangular inverse of a chunk and the convolution.
        """
        key, value, chunk = self.key_dim, self.value_dim, CHUNK
        each = 2 * chunk * (3 * key + 2 * value) + 6 * key * value + chunk**2
        return float(self.value_heads * each + 2 * self.channels * self.convolution)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """Weights that no matrix product or norm has: sinks of attention, scales."""

    count: int
    share: Share


@dataclass(frozen=True, kw_only=True, slots=True)
class Activation:
    """The non-linearity of the FFN: SwiGLU if gated, else one function."""

    width: int
    gated: bool
    module: Literal["mlp", "moe", "shared_experts"]
    clamped: bool = False
    """Whether its input is clamped on both sides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatch:
    """The transfer of each token to its experts."""

    hidden: int
    top_k: int
    experts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """Elements that the backward pass needs again: MLA's rotary key, a gate, a dropout's mask."""

    width: int
    bytes: int = 2
    """Bytes of one element."""
    split: bool = False
    """Whether tensor parallelism divides it."""


Operator = Norm | Linear | Attention | Recurrence | Parameters | Activation | Dispatch | Keep


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerKind:
    """One kind of layer."""

    name: str
    hidden: int
    operators: tuple[Operator, ...]
    buffer: int = 0
    """Elements that Hugging Face counts as parameters and Megatron keeps as a buffer (the router's balancing bias)."""


One = TypeVar("One", Linear, Attention, Activation)


@lru_cache(maxsize=1024)
def operators_of(kind: LayerKind, wanted: type[One]) -> tuple[One, ...]:
    """Return the operators of one type in a layer."""
    return tuple(operator for operator in kind.operators if isinstance(operator, wanted))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class VisionLayers:
    """The parts of a vision tower. Block and patch embedding run per patch, mergers per merged token."""

    patch_embedding: LayerKind
    positions: int
    """Elements of the learned positions."""
    other: int
    """Elements of the tower's other weights: a class token, norms around the blocks."""
    block: LayerKind
    depth: int
    patches_per_token: int
    """Patches that become one token of the language model."""
    merger: LayerKind
    deep_stack_merger: LayerKind
    deep_stack: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ModelLayers:
    """A whole model. The decoder is a sequence of layers of one or more kinds."""

    embedding: int
    """Elements of the embedding table, without padding."""
    positions: int = 0
    """Elements of a learned table of positions (GPT), whole on every TP rank of the first stage."""
    kinds: tuple[LayerKind, ...]
    """Kinds of decoder layers; each occurs."""
    order: tuple[int, ...]
    """For each decoder layer, first to last, the index of its kind."""
    output: LayerKind
    """Final norm and output projection."""
    tied: bool
    vision: VisionLayers | None

    @property
    def count(self) -> int:
        """Return the number of decoder layers."""
        return len(self.order)


@lru_cache(maxsize=1024)
def counted_kinds(layers: ModelLayers) -> tuple[tuple[LayerKind, int], ...]:
    """Return the kinds of decoder layers, each with its number of layers."""
    return tuple((kind, layers.order.count(index)) for index, kind in enumerate(layers.kinds))


@lru_cache(maxsize=1024)
def last_kinds(layers: ModelLayers, last: int) -> tuple[tuple[LayerKind, int], ...]:
    """Return the kinds of the last `last` decoder layers, each with its number of layers among them."""
    order = layers.order[-last:] if last > 0 else ()
    return tuple((kind, order.count(index)) for index, kind in enumerate(layers.kinds) if index in order)


@lru_cache(maxsize=1024)
def has_experts(kind: LayerKind) -> bool:
    """Return whether the layer sends tokens to routed experts."""
    return any(isinstance(operator, Dispatch) for operator in kind.operators)
