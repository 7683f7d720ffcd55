"""The terms of the memory of a stage, and the moments of a step; the peak is at one of these moments."""

from collections.abc import Sequence
from functools import partial

from numpy import ndarray

from backend.estimate.array_ops import ZERO, Number, choose
from backend.estimate.frozen_dataclass import frozen_dataclass, positional_dataclass
from backend.estimate.memory.memory_term import NOTHING, Explanation, Piece, Products, joined, piece, products_of
from backend.estimate.memory.stage import RankParameters

STATIC_BYTES = 0.10 * 2**30
"""Workspaces of cuBLAS and Transformer Engine, and masks: allocated bytes that belong to no tensor of the model. The
median of Megatron-LM's own CI runs is 78 MiB on A100 and 105 MiB on H100."""

GROUPED_BYTES = 4 * 32 * 2**20
"""Transformer Engine's grouped GEMM of experts runs on four streams with a 32 MiB workspace each (4 MiB on Ampere):
transformer_engine/pytorch/cpp_extensions/gemm.py; Megatron-LM's CI readings show both."""

LIBRARIES = piece("workspace_libraries", STATIC_BYTES)
GROUPED = piece("workspace_grouped", GROUPED_BYTES)
WITH_EXPERTS = joined(LIBRARIES, GROUPED)


@frozen_dataclass
class StageMemory:
    """Bytes on one rank of a stage at the peak moment; the terms add up to `peak`."""

    stage: int
    layers: int
    parameters: RankParameters
    weights: Number
    gradients: Number
    optimizer: Number
    activations: Number
    logits: Number
    workspace: Number
    host: Number = 0.0
    """Bytes of this rank in host memory, which are not part of `peak`."""
    apart: Number = 0.0
    """Bytes that torch reserves beside those of `peak` for another stream (hugging_face.py)."""
    products: Products
    """Returns the products that add up to the terms."""

    @property
    def peak(self) -> Number:
        """Return the bytes that torch's allocator has handed out."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.workspace


@positional_dataclass
class Moment:
    """Bytes that a moment of a step needs beside those that are there at every moment."""

    gradients: Number = 0.0
    activations: Number = 0.0
    logits: Number = 0.0
    workspace: Number = 0.0
    products: Products = tuple
    """Returns the products that add up to these bytes."""

    @property
    def total(self) -> Number:
        return self.gradients + self.activations + self.logits + self.workspace


def moment(
    gradients: Piece = NOTHING,
    activations: Sequence[Piece] = (),
    logits: Piece = NOTHING,
    workspace: Sequence[Piece] = (),
) -> Moment:
    """Return a moment that needs these pieces."""
    saved, work = ZERO, ZERO
    for part in activations:
        saved = saved + part.bytes
    for part in workspace:
        work = work + part.bytes
    products = partial(_products, gradients, activations, logits, workspace)
    return Moment(gradients.bytes, saved, logits.bytes, work, products)


def _products(gradients: Piece, activations: Sequence[Piece], logits: Piece, workspace: Sequence[Piece]) -> Explanation:
    return products_of(gradients, *activations, logits, *workspace)()


_NOTHING = Moment()


def peak_moment(moments: list[Moment]) -> Moment:
    """Return the moment that needs most; a stage that holds the embedding alone has none."""
    best, most = _NOTHING, ZERO
    for moment in moments:
        total = moment.total
        more = total > most
        if type(more) is ndarray:
            best = Moment(
                gradients=choose(more, moment.gradients, best.gradients),
                activations=choose(more, moment.activations, best.activations),
                logits=choose(more, moment.logits, best.logits),
                workspace=choose(more, moment.workspace, best.workspace),
            )
            most = choose(more, total, most)
        elif more:
            best, most = moment, total
    return best
