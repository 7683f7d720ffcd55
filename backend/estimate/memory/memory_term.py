"""A piece of a term as a product of named numbers, which the page shows with the numbers filled in."""

from dataclasses import dataclass
from math import prod

from backend.estimate.array_ops import Number, plain

GIB = 2.0**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A product that belongs to a term; the parts of a term add up to it."""

    term: str
    """weights, gradients, optimizer, activations, logits or workspace."""
    name: str
    """What is counted; words under `explain.<name>`."""
    factors: tuple[tuple[str, float], ...]
    """(name, number), words under `explain.factor.<name>`; their product is in bytes."""

    @property
    def gib(self) -> float:
        """The product, GiB."""
        return float(prod(number for _, number in self.factors)) / GIB


def part(name: str, **factors: Number) -> Part:
    """A part whose term is the first word of its name."""
    return Part(
        term=name.partition("_")[0],
        name=name,
        factors=tuple((factor, plain(number)) for factor, number in factors.items()),
    )


def share(ranks: Number) -> dict[str, Number]:
    """The factor of what `ranks` ranks divide among themselves; none where there is nothing to divide."""
    return {} if ranks == 1 else {"ranks_share": 1 / ranks}


def logits_part(bytes_on_rank: Number, tokens: Number, vocabulary: int, tensor: Number = 1) -> Part:
    """Logits, and what the loss keeps of them, as bytes for each token and vocabulary entry."""
    each = bytes_on_rank * tensor / (tokens * vocabulary)
    return part("logits", bytes_each=each, tokens=tokens, vocabulary=vocabulary, **share(tensor))
