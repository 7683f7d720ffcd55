"""Linear attention of Ling's hybrid models. Widths are in elements."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LightningAttention:
    """Linear attention with a fixed decay of each head, whose normed output has a gate (Ling 2.5)."""

    heads: int
    head_dim: int
    normed: bool
    """Whether queries and keys have norms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KimiDelta:
    """Linear attention with a delta rule whose decay is a projection, an element for each of the keys (Ling 3)."""

    heads: int
    head_dim: int
    convolution: int
    """Tokens of the causal convolution before it."""
