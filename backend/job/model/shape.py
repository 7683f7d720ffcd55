"""The shape of a model for planning: its decoder layers, its embedding and its vision tower. Widths are in elements."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from math import gcd
from typing import Literal

from backend.job.model.attention_shape import ConvolvedAttention, FullAttention, Mla
from backend.job.model.compressed_shape import CompressedAttention
from backend.job.model.linear_shape import GatedDeltaNet, LightningAttention, ShortConvolution, StateSpace
from backend.job.model.operators import NormWeights, Operator
from backend.job.model.vision_shape import VisionShape

Norms = Literal["before", "after", "both", "shared", "none"]
"""The norms of a layer: before attention and FFN, after them, on both sides (Gemma 2), one before attention and FFN in
parallel (Cohere), or none."""


Mixer = (
    FullAttention
    | Mla
    | CompressedAttention
    | ConvolvedAttention
    | GatedDeltaNet
    | LightningAttention
    | StateSpace
    | ShortConvolution
)
"""What mixes the tokens of a sequence in a layer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ffn:
    """A dense FFN."""

    width: int
    gated: bool
    """Three matrices (SwiGLU) instead of two."""
    bias: bool = False
    unfused: bool = False
    """Whether transformers computes the function in several steps (gelu_new), each of which saves tensors."""
    xielu: bool = False
    """Whether the function is xIELU, which has two weights of its own and saves a tensor in most of its steps."""
    sparse: bool = False
    """Whether only the largest inputs of the function are kept, by their mean and deviation (Gemma 3n)."""
    clamped: bool = False
    clamps_output: bool = False
    clamps_silu: bool = False
    """As in Experts."""
    gelu: bool = False
    """As in Activation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """Routed experts, with shared experts that process every token."""

    count: int
    top_k: int
    width: int
    gated: bool
    bias: bool = False
    """Biases on the experts' projections (gpt-oss)."""
    clamped: bool = False
    """Whether the experts' activation clips large inputs (gpt-oss)."""
    shared_clamped: bool = False
    """Whether that of the shared experts does, too (MiniMax-M3)."""
    clamps_output: bool = False
    """Whether it clips what the function returns, and the other half, and not its input (Step 3.7)."""
    clamps_silu: bool = False
    """Whether the function after the clip is SiLU (DeepSeek-V4), which saves less than that of gpt-oss."""
    shared_width: int = 0
    """Width of all shared experts together; 0 if there is none."""
    shared_gate: bool = False
    """Whether the shared expert has its own gate (Qwen2-MoE)."""
    gelu: bool = False
    """As in Activation, of the shared expert."""
    router_bias: bool = False
    """A bias per expert for load balancing (DeepSeek-V3)."""
    dense: bool = False
    """Whether transformers computes every expert for every token, and multiplies the inputs of those that the router
    did not choose by 0 (Llama 4). Megatron-Core computes only the chosen ones."""
    fp32_routing: bool = False
    """Whether the experts' outputs are multiplied by weights in fp32."""
    fp32_router: bool = False
    """Whether transformers' router casts its input to fp32 (DeepSeek-V3)."""
    router_rank: int = 0
    """Width of a router with several layers, which also chooses no expert (ZAYA); 0 for a router of one matrix."""
    single: bool = False
    """Whether every expert has modules of its own (code in a model's folder). Those of transformers are parameters of
    one module, which a grouped product multiplies."""
    leaf: bool = False
    """Whether LLaMA-Factory has ZeRO-3 fetch all modules of a layer's experts at once (0.9.5 model_utils/moe.py
    add_z3_leaf_module). Without that ZeRO-3 fetches each alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ngrams:
    """An embedding of the n-grams that end in a token, which the layer adds to its residual streams (Qwen4)."""

    width: int
    """Width of the embedding of all n-grams of a token."""
    table: int
    """Weights of the embedding."""
    convolution: int
    """Tokens of a convolution over the streams; 0 without one."""
    norms: int = 3
    """Norms of all streams together: of keys, queries and, before the convolution, the result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerShape:
    """One kind of decoder layer."""

    attention: Mixer | None
    """None: the layer has only an FFN (Nemotron-H)."""
    ffn: Ffn | Experts | None
    """None: the layer has only attention."""
    beside: StateSpace | None = None
    """A state space that reads the same input as the attention (Falcon-H1)."""
    other: int = 0
    """Weights that no projection or norm has."""
    dropout: bool = False
    """Whether training drops elements of what attention and FFN add to the residual stream."""
    per_layer: int = 0
    """Width of the layer's own embedding of every token, which gates its output (Gemma 3n, Gemma 4)."""
    altup: int = 0
    """Copies of the hidden state that the layer predicts and corrects (AltUp, Gemma 3n); 0 without AltUp."""
    laurel: int = 0
    """Rank of a projection beside the attention (Laurel, Gemma 3n); 0 if there is none."""
    streams: int = 0
    """Residual streams, each as wide as the hidden state, that attention and FFN read as a gated mean (Qwen4); 0 for a
    single stream that they read through a norm."""
    stream_rank: int = 0
    """Rank of the projections that compute the gates of the streams; 0 if one matrix does (DeepSeek-V4, HY 4)."""
    stream_rounds: int = 0
    """Steps in which the matrix that mixes the streams becomes doubly stochastic (Sinkhorn's algorithm, DeepSeek-V4); 0
    if the streams are not mixed (HY 4)."""
    streams_averaged: bool = False
    """Whether the streams end in their plain mean (GLM-5.3), and not in one with weights."""
    ngrams: Ngrams | None = None
    ffn_norm: bool = False
    """Whether a norm follows the FFN, whatever `norms` says (A.X K1)."""
    scales_residual: bool = False
    """Whether weights scale and shift the residual stream, and what attention and FFN add to it (ZAYA)."""
    expert_norms: bool = False
    """Whether experts beside a dense FFN have norms of their own: before and after them, after the FFN, and one without
    weights before the router (Gemma 4)."""
    norm_gate: int = 0
    """Rank of the projections that gate the output of each norm before attention or experts (A.X K2); 0 without
    gates."""
    norms: Norms = "before"
    norm: NormWeights = "scale"
    fp32_norms: bool = False
    """As `in_fp32` in Norm."""
    modules: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names of the modules of its projections, if they are not those of Llama: projection, names."""
    operators: tuple[Operator, ...] = ()
    """The operators that a profile found; empty if they follow from the fields above."""
    saved_bytes: float = 0.0
    """Bytes per token that the profile measured as saved for the backward pass: flash attention, 16 bits. 0 if none."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder of one or more kinds of layers, with an optional vision tower."""

    model_type: str
    """Hugging Face's name of the architecture; empty if only plain keys were given."""
    hidden: int
    vocab: int
    tied: bool
    """Whether the output layer shares the embedding's weight."""
    kinds: tuple[LayerShape, ...]
    """Kinds of decoder layers; each occurs."""
    order: tuple[int, ...]
    """For each decoder layer, first to last, the index of its kind."""
    positions: int = 0
    """Learned positions of the decoder."""
    head_bias: bool = False
    """Whether the output layer has a bias."""
    softcap: bool = False
    """Whether tanh bounds the logits (Gemma 2)."""
    only_counted: bool = False
    """Whether the model gives its parameters only: its layers do not run as those of a decoder (DiffusionGemma), or its
    tower has several transformers (DeepSeek-OCR 2)."""
    fp32_residual: bool = False
    """Whether the class keeps the residual stream in fp32, whatever the precision of its weights (ZAYA)."""
    bare_embedding_norm: bool = False
    """Whether a norm without weights follows the embedding, which saves its input in fp32 (Muse Glimmer)."""
    other: int = 0
    """Weights beside the layers: tables of embeddings for every layer (Gemma 3n), a norm of the embedding."""
    own_mtp: int = 0
    """Layers for multi-token prediction that the model's own code builds (MiMo, Ling)."""
    runs_mtp: bool = False
    """Whether its forward pass runs them (Ling)."""
    vision: VisionShape | None = None

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once: the shape is a key of caches that every estimate reads."""
        values = (getattr(self, each.name) for each in fields(self))
        return hash(tuple(values))

    @property
    def layers(self) -> int:
        """Return the number of decoder layers."""
        return len(self.order)

    @cached_property
    def heads(self) -> int:
        """Return the attention heads; of several kinds of layers, the greatest number that divides the heads of all,
        which is what tensor parallelism must divide."""
        return self._common(_heads)

    @cached_property
    def kv_heads(self) -> int:
        """Return the key and value heads, likewise."""
        return self._common(_kv_heads)

    @cached_property
    def head_dim(self) -> int:
        """Return the width of the widest head."""
        return max(_head_dim(kind) for kind in self.kinds)

    @cached_property
    def ffn(self) -> int:
        """Return the width of a dense layer's FFN; 0 if all layers have experts."""
        return gcd(*(kind.ffn.width for kind in self.kinds if isinstance(kind.ffn, Ffn)))

    @cached_property
    def moe(self) -> Experts | None:
        """Return the experts of a layer, if there are any."""
        return next((kind.ffn for kind in self.kinds if isinstance(kind.ffn, Experts)), None)

    @property
    def experts(self) -> int:
        """Return the number of routed experts of a layer; 0 for a dense model."""
        return self.moe.count if self.moe else 0

    @property
    def top_k(self) -> int:
        """Return the number of experts of a token."""
        return self.moe.top_k if self.moe else 0

    @property
    def expert_ffn(self) -> int:
        """Return the width of an expert."""
        return self.moe.width if self.moe else 0

    @cached_property
    def mla(self) -> Mla | None:
        """Return the latent attention, if a layer has it."""
        return next((kind.attention for kind in self.kinds if isinstance(kind.attention, Mla)), None)

    @cached_property
    def has_indexer(self) -> bool:
        """Return whether layers choose the keys of sparse attention by scores without gradients."""
        return any(isinstance(each, _SPARSE) and each.indexer for each in self._mixers())

    @cached_property
    def is_sparse(self) -> bool:
        """Return whether attention reads only chosen keys."""
        return any(isinstance(each, _SPARSE) and each.masked for each in self._mixers())

    @cached_property
    def masks_heads(self) -> bool:
        """Return whether an indexer makes a mask for each head."""
        return any(
            isinstance(each, FullAttention) and each.indexer is not None and each.indexer.masks_heads
            for each in self._mixers()
        )

    @cached_property
    def is_only_counted(self) -> bool:
        """Return whether a layer's description gives its parameters, and neither its memory nor its time."""
        return self.only_counted or any(
            (isinstance(each, CompressedAttention) and each.shares_entries)
            or (isinstance(each, Mla) and each.gate == "heads")
            for each in self._mixers()
        )

    @cached_property
    def has_lightning_attention(self) -> bool:
        """Return whether layers have linear attention with fixed decays (Ling 2.5)."""
        return any(isinstance(each, LightningAttention) for each in self._mixers())

    @cached_property
    def has_connections(self) -> bool:
        """Return whether a matrix computes the weights of residual streams (hyper-connections)."""
        return any(kind.streams and not kind.stream_rank for kind in self.kinds)

    @cached_property
    def is_compressed(self) -> bool:
        """Return whether attention reads compressed keys."""
        return any(isinstance(each, CompressedAttention) for each in self._mixers())

    @cached_property
    def has_gate_of_heads(self) -> bool:
        """Return whether a projection of its own gates each head of attention."""
        return any(isinstance(each, FullAttention) and each.gate == "own_of_head" for each in self._mixers())

    @cached_property
    def widest_head(self) -> int:
        """Return the width of the widest head of queries."""
        return max((each.head_dim for each in self._mixers() if isinstance(each, FullAttention)), default=0)

    @cached_property
    def layers_with_shared_keys(self) -> int:
        """Return the number of layers that read keys and values of an earlier layer."""
        sharing = [isinstance(each, FullAttention) and each.projects == "queries" for each in self._mixers()]
        return sum(sharing[kind] for kind in self.order)

    @cached_property
    def has_sinks(self) -> bool:
        """Return whether attention has sinks."""
        return any(
            isinstance(each, CompressedAttention) or (isinstance(each, FullAttention | Mla) and each.sinks)
            for each in self._mixers()
        )

    @cached_property
    def has_softcap(self) -> bool:
        """Return whether attention bounds its scores by tanh."""
        return any(isinstance(each, FullAttention) and each.softcap for each in self._mixers())

    def _mixers(self) -> Iterator[Mixer | None]:
        return (kind.attention for kind in self.kinds)

    def _common(self, number: Callable[[LayerShape], int]) -> int:
        return gcd(*(number(kind) for kind in self.kinds)) or 1


_WITH_HEAD_DIM = FullAttention | CompressedAttention | ConvolvedAttention | LightningAttention
_SPARSE = FullAttention | Mla | CompressedAttention
"""Mixers that may read only chosen keys."""


def _heads(kind: LayerShape) -> int:
    """Return the heads of a layer; 0 for a layer that any tensor parallelism can divide."""
    attention = kind.attention
    return attention.heads if isinstance(attention, _SPARSE | ConvolvedAttention) else _state_heads(attention)


def _kv_heads(kind: LayerShape) -> int:
    attention = kind.attention
    return attention.kv_heads if isinstance(attention, _SPARSE | ConvolvedAttention) else _state_heads(attention)


def _state_heads(mixer: Mixer | None) -> int:
    if isinstance(mixer, GatedDeltaNet):
        return mixer.key_heads
    if isinstance(mixer, LightningAttention):
        return mixer.heads
    # Ranks share whole groups of Mamba 2.
    return mixer.groups if isinstance(mixer, StateSpace) and mixer.heads else 0


def _head_dim(kind: LayerShape) -> int:
    attention = kind.attention
    if isinstance(attention, Mla):
        return attention.nope_dim + attention.rope_dim
    if isinstance(attention, GatedDeltaNet):
        return attention.key_dim
    return attention.head_dim if isinstance(attention, _WITH_HEAD_DIM) else 0
