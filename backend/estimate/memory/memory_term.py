"""The parts of a memory term: bytes, with the products of named numbers that the page shows as their formula."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Protocol

from numpy import ndarray

from backend.estimate.array_ops import ZERO, Flag, Number, choose, largest, plain
from backend.estimate.frozen_dataclass import positional_dataclass
from backend.estimate.memory.stage import RankParameters
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


Explanation = Sequence[Product]
"""The products of some bytes."""
Products = Callable[[], Explanation]
"""Returns the products of some bytes. Only `explain` calls it, and only for a single plan."""


class Explained(Protocol):
    """Bytes that products explain."""

    @property
    def products(self) -> Products: ...


@positional_dataclass
class Piece:
    """A part of a term, and the products that explain it."""

    bytes: Number
    products: Products = tuple


NOTHING = Piece(0.0)


def total(pieces: Sequence[Piece]) -> Number:
    """Return the bytes of pieces together."""
    every = ZERO
    for part in pieces:
        every = every + part.bytes
    return every


def joined(*pieces: Piece) -> Piece:
    """Return the sum of pieces."""
    if len(pieces) == 1:
        return pieces[0]
    return Piece(total(pieces), products_of(*pieces))


def products_of(*parts: Explained) -> Products:
    """Return what returns the products of all these parts."""
    return lambda: [product for part in parts for product in part.products()]


def chosen_piece(condition: Flag, true: Piece, false: Piece) -> Piece:
    """Return `true` where the condition holds, else `false`."""
    if type(condition) is not ndarray:
        return true if condition else false
    return Piece(choose(condition, true.bytes, false.bytes), lambda: (true if condition else false).products())


def largest_piece(*pieces: Piece) -> Piece:
    """Return the largest piece, entry by entry where plans are arrays."""
    if len(pieces) == 1:
        return pieces[0]
    return Piece(
        largest(*[part.bytes for part in pieces]),
        lambda: max(pieces, key=lambda part: plain(part.bytes)).products(),
    )


def piece(name: str, size: Number, ranks: Number = 1, **factors: Number | None) -> Piece:
    """Return a piece of `size` bytes, divided among `ranks`, with one product of these factors; the first word of its
    name is its term. A factor of None is what the other factors leave of the size."""
    if type(size) is not ndarray and not size:
        return NOTHING
    return Piece(size, partial(_solved, name, size, ranks, factors))


def _solved(name: str, size: Number, ranks: Number, factors: Mapping[str, Number | None]) -> Explanation:
    if not size:
        return ()
    known = prod(factor for factor in factors.values() if factor is not None)
    solved = {key: size * ranks / known if factor is None else factor for key, factor in factors.items()}
    return (_product(name, ranks, solved or {"bytes": size}),)


def token_piece(name: str, size: Number, plan: Plan, **counts: Number) -> Piece:
    """Return a piece of so many bytes per token of a micro-batch, for each of what is counted, such as layers."""
    return Piece(size, partial(_by_token, name, size, plan, counts))


def _by_token(name: str, size: Number, plan: Plan, counts: Mapping[str, Number]) -> Explanation:
    return _solved(name, size, 1, {**counts, "tokens": plan.tokens, "bytes_per_token": None})


def trained_piece(
    name: str,
    each: Number,
    on_rank: Number,
    parameters: RankParameters,
    ranks: tuple[Number, Number] = (1, 1),
    **factors: Number,
) -> Piece:
    """Return `each` bytes for every trained parameter whose state is on the rank. `ranks` are how many ranks divide the
    states of dense parameters, and how many those of experts."""
    return Piece(each * on_rank, partial(_trained, name, each, parameters, ranks, factors))


def _trained(
    name: str,
    each: Number,
    parameters: RankParameters,
    ranks: tuple[Number, Number],
    factors: Mapping[str, Number],
) -> Explanation:
    dense_ranks, expert_ranks = ranks
    counts = (("dense", parameters.trained_dense, dense_ranks), ("expert", parameters.trained_expert, expert_ranks))
    return [
        _product(f"{name}_{kind}", shared, {"bytes_each": each, f"{kind}_trained": count, **factors})
        for kind, count, shared in counts
    ]


def _product(name: str, ranks: Number, factors: dict[str, Number]) -> Product:
    every = {**factors, **({} if ranks == 1 else {"ranks_share": 1 / ranks})}
    return Product(
        term=name.partition("_")[0],
        name=name,
        factors=tuple((factor, plain(number)) for factor, number in every.items()),
    )
