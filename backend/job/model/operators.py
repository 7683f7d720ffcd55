"""Operators of a model's layers: what one layer computes, in its order of execution.

Widths are in elements per token. `share` says how tensor parallelism divides a weight: `split` over TP, `whole` on
every TP rank, `expert` over EP x ETP.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Sinks = Literal["", "logit", "fp32_logit", "scale"]
Share = Literal["split", "whole", "expert"]

CHUNK = 64
"""Tokens of a chunk of linear attention (fla/ops/gated_delta_rule/chunk.py, and transformers' chunk_size)."""

NormWeights = Literal["none", "scale", "centred_scale", "scale_and_shift"]
"""The weights of a norm: none, one per element (RMSNorm), or two per element (LayerNorm)."""
WEIGHTS: Mapping[NormWeights, int] = {"none": 0, "scale": 1, "centred_scale": 1, "scale_and_shift": 2}
"""Weights of a norm per element. One with a centred scale subtracts the mean and has no shift (Cohere)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """A normalisation of `width` elements per token."""

    width: int
    parameters: int
    detached: bool = False
    """Whether it is a separate module in Transformer Engine, and not fused into the next projection."""
    is_joined: bool = False
    """Whether its output is copied into another tensor or added to the residual stream, so that no projection keeps it
    (Megatron-Core)."""
    heads: bool = False
    """Whether it normalises each attention head; its output is then the input of the attention."""
    of_keys: bool = False
    """Whether these are heads of keys and values, of which each TP rank has at least one (Megatron-Core)."""
    in_fp32: bool = False
    """Whether an RMSNorm casts its output after the product with its weight, and not before (Gemma)."""
    layer_norm: bool = False
    """Whether it is a LayerNorm, which torch computes in one kernel, or an RMSNorm in several kernels."""
    centred: bool = False
    """Whether it subtracts the mean, too, in several kernels (Cohere)."""
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
    modules: tuple[str, ...] = ()
    """Names of these modules, if they are not those of Llama."""
    single: bool = False
    """As in Experts (shape.py): each copy is a module of its own."""
    after_norm: bool = False
    """Its input is the output of a norm over the residual stream."""
    beside: bool = False
    """Another projection reads the same output of a norm."""
    casts_input: bool = False
    """Whether its module casts its input to fp32, as routers do."""
    untrained: bool = False
    """Whether it runs without gradients, even if it is trainable (the projections of an indexer)."""


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
    joined: bool = False
    """The value of a decoder's layer is a view of the output of one projection, which therefore stays allocated beside
    rotated queries and keys."""
    latent: bool = False
    """Query, key and value are computed from low-rank inputs that are saved too (MLA)."""
    borrows_keys: bool = False
    """Whether keys and values are those that an earlier layer keeps (Gemma 4)."""
    stores_scores: bool = False
    """As in FullAttention (shape.py)."""
    sinks: Sinks = ""
    """As in FullAttention."""
    rounds_softmax: bool = False
    """As in FullAttention."""
    softcap: bool = False
    """As in FullAttention."""
    cross: bool = False
    """Whether keys and values come from images. What they need is counted with their own projections."""
    masked: bool = False
    """As in Mla (shape.py). A fused kernel saves the mask in the precision of queries."""
    mask_heads: int = 1
    """Heads with a mask of their own; 1 if all heads share one."""
    entry: int = 0
    """Tokens for which there is one more key, compressed from theirs; 0 without such keys (DeepSeek-V4)."""

    @property
    def shares_keys(self) -> bool:
        """Return whether query heads share keys, and torch's SDPA needs no mask. With a mask transformers repeats the
        keys."""
        needs_mask = self.stores_scores or self.window or self.masked or self.cross or not self.causal
        return self.heads > self.kv_heads and not needs_mask


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenKeys:
    """The core of Megatron-Core's attention over chosen keys, without its projections: one latent key for all heads, of
    which the first part is the value. It computes and stores the scores of every query and key; those of keys that were
    not chosen become 0."""

    heads: int
    latent: int
    """Width of a value."""
    rotary: int
    """Elements of a query and of the key with rotary positions."""
    plain: int
    """Elements of a projected query head without them."""
    value_dim: int
    """Width of a head after the projection of its latent output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexScores:
    """The scores of an indexer (shape.py), without its projections. They have no backward pass."""

    heads: int
    key_dim: int
    rotary: int
    """Elements of a query head that get rotary positions."""
    spreads_keys: bool
    """As in Indexer."""
    in_fp32: bool = False
    """Whether it is Megatron-Core's, which computes the scores in fp32."""
    pooled: int = 0
    """As in Indexer (attention_shape.py)."""
    kept: int = 0
    """Keys of a query whose numbers stay until the layers that share them have run backward; 0 if no layer does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockScores:
    """The scores of a BlockIndexer (shape.py), without its projection. They have no backward pass."""

    heads: int
    key_dim: int
    block: int
    masked_heads: int = 0
    """Heads of attention, each of which gets a mask of its own, if every key is scored for all queries at once
    (MiniMax-M3). 0 if one query after another scores the blocks: the tensors are small then."""
    scores_later: bool = False
    """Whether a query scores the blocks after it, too (compressed entries of DeepSeek-V4). Attention, which stores the
    scores of all heads, then needs more memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recurrence:
    """The core of linear attention with a gated delta rule, and the convolution before it, without projections."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: int
    """Tokens of the causal convolution over queries, keys and values."""
    decays_channels: bool = False
    """Whether each channel of a key has its own decay (Kimi Delta Attention)."""

    @property
    def channels(self) -> int:
        """Return the channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def parameters(self) -> int:
        """Return the weights of the convolution, the decay of every value head, and the bias of every decay."""
        biases = self.key_dim if self.decays_channels else 1
        return self.channels * self.convolution + self.value_heads * (1 + biases)

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
class Mixing:
    """Other work between projections, as sums: a state space, a short convolution, or what a profile measured."""

    name: str
    parameters: int
    flops: float
    """Forward operations per token."""
    saved_bytes: float
    """Bytes per token that the backward pass needs, in 16 bits."""
    moved_bytes: float
    """Bytes per token that its kernels read and write in the forward pass."""
    kernels: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """Weights that no matrix product or norm has: sinks of attention, scales, a table of embeddings."""

    count: int
    share: Share
    looked_up: bool = False
    """Whether it is a table of embeddings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Activation:
    """The non-linearity of the FFN: SwiGLU if gated, else one function."""

    width: int
    gated: bool
    module: Literal["mlp", "moe", "shared_experts"]
    clamped: bool = False
    """Whether its input is clamped on both sides."""
    clamps_output: bool = False
    """As in Experts (shape.py)."""
    clamps_silu: bool = False
    """As in Experts."""
    unfused: bool = False
    """Whether transformers computes it in several steps (gelu_new)."""
    gelu: bool = False
    """Whether the gated function is GELU by tanh (Gemma 4), which Megatron-Core computes in several steps."""
    xielu: bool = False
    """Whether it is xIELU (Apertus), which transformers computes in several steps."""
    sparse: bool = False
    """As in Ffn (shape.py)."""
    single: bool = False
    """As in Experts (shape.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AltUp:
    """A step of AltUp without its norms and projections (Gemma 3n): it enters with copies of the embedding; each layer
    predicts its copies and corrects them; it leaves with their mean."""

    step: Literal["enter", "predict", "correct", "leave"]
    width: int
    copies: int
    """Copies of the hidden state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Streams:
    """A step of residual streams. Those of Qwen4 are without their norms and projections: a gated mean of the streams,
    an addition to each, or the gated sum of an embedding of n-grams. Hyper-connections (DeepSeek-V4, GLM-5.3, HY 4)
    collapse the streams to a mean, whose weights one matrix computes from all of them in fp32, and spread an output
    over the streams. GLM-5.3 averages the streams after the last layer."""

    step: Literal["mix", "add", "ngrams", "collapse", "spread", "average"]
    width: int
    copies: int
    """Streams."""
    parameters: int = 0
    """Weights of the table of n-grams and of the convolution, or of a hyper-connection."""
    convolution: int = 0
    """Tokens of the convolution."""
    outputs: int = 0
    """Weights of a token that the matrix of a hyper-connection computes."""
    rounds: int = 0
    """As `stream_rounds` in LayerShape (shape.py)."""
    norms_first: bool = False
    """True: this matrix reads normed streams (DeepSeek-V4). False: its result is divided by their norm (HY 4)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatch:
    """The transfer of each token to its experts."""

    hidden: int
    top_k: int
    experts: int
    fp32_routing: bool = False
    single: bool = False
    """As in Experts (shape.py)."""
    fetched: int = 0
    """Modules of experts that ZeRO-3 fetches alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """Elements that the backward pass needs again: MLA's rotary key, a gate, a dropout's mask."""

    width: int
    bytes: Literal[1, 2, 4] = 2
    """Bytes of one element in 16-bit precision. A mask has one byte in every precision, and what is computed in fp32
    has 4."""
    is_residual: bool = False
    """Whether it has the precision of the residual stream."""
    split: bool = False
    """Whether tensor parallelism divides it."""
    gathered: bool = False
    """Whether it is only what other ranks hold of a sequence that sequence parallel splits."""
    weight_only: bool = False
    """Whether only the gradient of a weight needs it: it is not kept if the weight is frozen."""


Operator = (
    Norm
    | Linear
    | Attention
    | ChosenKeys
    | IndexScores
    | BlockScores
    | Recurrence
    | Mixing
    | Parameters
    | Activation
    | AltUp
    | Streams
    | Dispatch
    | Keep
)
