"""Linear attention. Widths are in elements."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LightningAttention:
    """Linear attention with a fixed decay of each head, whose normed output has a gate (Ling 2.5)."""

    heads: int
    head_dim: int
    key_heads: int
    """num_key_value_heads of config.json. The model's own code has as many keys as queries, and does not read it."""
    normed: bool
    """Whether queries and keys have norms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedDeltaNet:
    """Linear attention with a gated delta rule (Qwen3-Next, Qwen3.5, Kimi Linear, Ling 3)."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: int
    """Tokens of the causal convolution before it."""
    joined: bool = True
    """Whether two projections of the input give all that it needs (Qwen3-Next), and not four (Qwen3.5)."""
    decays_channels: bool = False
    """Whether each channel has a decay of its own (Kimi Delta Attention), and not each head."""
    rank: int = 0
    """Rank of the projections that compute these decays and the gate of the output (Kimi Linear); 0 if each is one
    matrix (Ling 3)."""


def kimi_delta(heads: int, head_dim: int, convolution: int, rank: int = 0) -> GatedDeltaNet:
    """Return Kimi Delta Attention, whose keys and values have equal heads."""
    return GatedDeltaNet(
        key_heads=heads,
        value_heads=heads,
        key_dim=head_dim,
        value_dim=head_dim,
        convolution=convolution,
        decays_channels=True,
        rank=rank,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSpace:
    """A selective state space (Mamba), and the convolution before it."""

    inner: int
    """Channels."""
    state: int
    """Elements of the state of a channel."""
    convolution: int
    """Tokens of the causal convolution."""
    heads: int = 0
    """Heads of Mamba 2; 0 for Mamba 1."""
    groups: int = 1
    """Groups of heads that share the inputs B and C (Mamba 2)."""
    rank: int = 0
    """Rank of the time step's projection (Mamba 1)."""
    chunk: int = 256
    """Tokens of a chunk (Mamba 2)."""
    bias: bool = False
    """Biases on the projections."""
    convolution_bias: bool = True
    normed: bool = True
    """Whether a norm follows: of the gated output (Mamba 2), or of the time step, B and C (Mamba 1, in Jamba)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortConvolution:
    """A short causal convolution between two gates (LFM2)."""

    convolution: int
    """Tokens of the convolution."""
    bias: bool = False
