"""Linear attention. Widths are in elements."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LightningAttention:
    """Linear attention with a fixed decay of each head, whose normed output has a gate (Ling 2.5)."""

    heads: int
    head_dim: int
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
