"""Attention that reads compressed keys (DeepSeek-V4). Widths are in elements."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Compressor:
    """The part of attention that makes one entry of the keys of several tokens, as a weighted mean of them."""

    width: int
    """Width of an entry, which is key and value."""
    rate: int
    """Tokens for which there is an entry."""
    overlaps: bool
    """Whether an entry also reads the tokens of the entry before it, by projections of their own."""
    has_places: bool = True
    """Whether the weights of the mean have a bias of each place."""
    weighs: bool = True
    """Whether a projection gives these weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryIndexer:
    """An indexer that chooses compressed entries, with a compressor of its own. It returns their numbers, so it has no
    gradient."""

    heads: int
    width: int
    """Width of a head."""
    compressor: Compressor | None
    """None: it has no entries of its own (DeepSeek-V4.1)."""
    key_inputs: int = 0
    """Width of the entries of attention from which it projects its keys; 0 if it does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedAttention:
    """Attention over a sliding window and over compressed entries, with one head that is key and value."""

    heads: int
    head_dim: int
    q_lora: int
    """Rank of the query's down-projection."""
    groups: int
    """Groups of heads, each with its own down-projection of the output."""
    o_lora: int
    """Rank of this projection."""
    window: int
    """Tokens that a token sees beside the entries."""
    compressor: Compressor | None
    """None: a token sees only the window."""
    indexer: EntryIndexer | None
    """What chooses the entries; None if a token sees all entries of tokens before it."""
    shares_entries: bool = False
    """Whether layers read the entries and the choice of layers before them (DeepSeek-V4.1)."""

    @property
    def masked(self) -> bool:
        """Return whether it reads only chosen keys, as in Mla."""
        return self.indexer is not None

    @property
    def kv_heads(self) -> int:
        """Return the number of heads that tensor parallelism divides; the key head is whole on every rank."""
        return self.heads
