"""The memory of a stage as products of named numbers, which the page shows as formulas."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from backend.estimate.array_ops import Number, plain
from backend.estimate.memory.terms import Term
from backend.estimate.plan import Plan

GIB = 2.0**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """One product of a term; the sum of all its products is the term."""

    term: str
    """weights, gradients, optimizer, activations, logits or workspace."""
    name: str
    """The catalogue has its words under `explain.<name>`."""
    factors: tuple[tuple[str, float], ...]
    """(name, number), with words under `explain.factor.<name>`; their product is in bytes."""

    @property
    def gib(self) -> float:
        """Return the product in GiB."""
        return float(prod(number for _, number in self.factors)) / GIB


def product(name: str, **factors: Number) -> Product:
    """Return a product; the first word of its name is its term."""
    return Product(
        term=name.partition("_")[0],
        name=name,
        factors=tuple((factor, plain(number)) for factor, number in factors.items()),
    )


def share(ranks: Number) -> dict[str, Number]:
    """Return the factor of bytes that these ranks divide among themselves; no factor for one rank."""
    return {} if ranks == 1 else {"ranks_share": 1 / ranks}


def logits_product(bytes_on_rank: Number, tokens: Number, vocabulary: int, tensor: Number = 1) -> Product:
    """Return the product of the logits and of the loss: bytes for each token and each vocabulary entry."""
    element = bytes_on_rank * tensor / (tokens * vocabulary)
    return product("logits", bytes_each=element, tokens=tokens, vocabulary=vocabulary, **share(tensor))


def products_of(terms: Iterable[Term], plan: Plan) -> Iterator[Product]:
    """Yield the products of terms that have any bytes."""
    for name, size, unit, element, layers in terms:
        if not size:
            continue
        if unit == "bytes":
            yield product(name, bytes=size)
        elif unit == "elements":
            yield product(name, bytes_each=element, elements=size / element)
        elif unit == "patches":
            yield product(name, patches=plan.vision_patches, bytes_per_patch=size / plan.vision_patches)
        else:
            counted = {"layers": layers} if layers else {}
            yield product(name, **counted, tokens=plan.tokens, bytes_per_token=size / (layers or 1) / plan.tokens)
