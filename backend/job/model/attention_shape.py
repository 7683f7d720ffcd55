"""Attention with softmax over keys and values as they are projected. Widths are in elements."""

from dataclasses import dataclass
from typing import Literal

from backend.job.model.operators import Sinks

QkNorm = Literal["none", "heads", "whole", "bare"]
"""A norm over every query and key head, over all heads together (OLMo 2), or over every head without weights
(Llama 4)."""
WIDEST_HEAD = 256
"""FlashAttention 2: "only supports head dimensions up to 256" (https://github.com/Dao-AILab/flash-attention/
issues/2427). Transformer Engine turns FlashAttention and its fused attention off for wider heads
(https://github.com/NVIDIA/TransformerEngine/issues/3006)."""
Gate = Literal["none", "query", "own", "own_of_head"]
"""A gate of the attention's output: from the query projection (Qwen3-Next), from a projection of its own, or from one
with a single output for each head (Laguna)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockIndexer:
    """An indexer that chooses blocks of keys, without a gradient. transformers scores a block by the mean of its keys,
    for one query after another (Qwen4)."""

    heads: int
    head_dim: int
    block: int
    """Keys of a block."""
    masks_heads: bool = False
    """Whether it scores every key for all queries at once, a block by its highest score, and makes a mask for each head
    of attention (MiniMax-M3)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FullAttention:
    """Attention with softmax, over the whole sequence or a sliding window."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0
    """Width of a value head; 0 if it is that of a key head."""
    bias: bool = False
    """Biases on the query, key and value projections."""
    output_bias: bool = False
    """Bias on the output projection."""
    qk_norm: QkNorm = "none"
    gate: Gate = "none"
    """A gate of the output."""
    sinks: Sinks = ""
    """A learned logit per head: one more logit of the softmax (gpt-oss), or one that scales the output by the share of
    the softmax that it leaves (Granite SWA)."""
    rounds_softmax: bool = False
    """Whether transformers' class computes the softmax in the precision of the scores, and not in fp32, in layers
    without sinks too (MiMo-V2-Flash)."""
    softcap: bool = False
    """A bound of the scores by tanh (Gemma 2), which SDPA leaves out."""
    window: int = 0
    """Tokens that a token sees; 0 if it sees all before it."""
    projects: Literal["all", "keys", "queries"] = "all"
    """What it projects: queries, keys and values; queries and keys, which are the values too; or queries alone, for the
    keys and values of an earlier layer (Gemma 4)."""
    value_norm: bool = False
    """A norm of the values without weights."""
    stores_scores: bool = False
    """Whether transformers' class has no fused attention and stores the matrix of scores (BLOOM)."""
    cross: bool = False
    """Whether queries come from tokens, but keys and values from images (Mllama), and gates weigh what attention and
    FFN add to the residual stream."""
    masked: bool = False
    """As in Mla."""
    indexer: BlockIndexer | None = None
    """What chooses the keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvolvedAttention:
    """Attention whose queries and keys pass through two causal convolutions, and of whose values one half is that of
    the token before (ZAYA)."""

    heads: int
    kv_heads: int
    head_dim: int
    channel_tokens: int
    """Tokens of the convolution of each channel."""
    head_tokens: int
    """Tokens of the convolution of each head."""
    window: int = 0
    bias: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Indexer:
    """The part of sparse attention that scores every key for every query, and chooses the keys that attention reads.
    transformers computes it without gradients (DeepSeek-V3.2)."""

    heads: int
    head_dim: int
    spreads_keys: bool = False
    """Whether its product makes a copy of the keys for every query, if a batch has several sequences."""
    chosen: int = 0
    """Keys that it chooses for a query."""
    is_shared: bool = False
    """Whether later layers read the keys that it chooses."""
    pooled: int = 0
    """Keys of a group of which it chooses all or none, by a weighted mean (GLM-5.3); 0 if it chooses single keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2 and later)."""

    heads: int
    q_lora: int
    """Rank of the query's down-projection; 0 if the query is projected directly."""
    kv_lora: int
    nope_dim: int
    """Width of a query or key head without its rotary part."""
    rope_dim: int
    value_dim: int
    masked: bool = False
    """Whether it reads only chosen keys, as a mask says that is as large as the matrix of scores."""
    indexer: Indexer | None = None
    """What chooses the keys; None if it reads the mask of an earlier layer (GLM-5.2), or all keys."""
    gate: Literal["none", "query", "heads", "own"] = "none"
    """A gate of the output: from the query's up-projection, which then reads its input before and after the norm
    (A.X K2), from a projection with one output for each head (Ling 3), or from one as wide as the output (HY 4)."""
    sinks: bool = False
    """Whether each head has a learned logit more (HY 4)."""

    @property
    def kv_heads(self) -> int:
        """Return the number of key heads after the up-projection."""
        return self.heads
