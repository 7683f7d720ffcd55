"""The terms of the memory of a stage, and the moments of a step; the peak is at one of these moments."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from backend.estimate.array_ops import ZERO, Number, choose
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.memory.stage import RankParameters

STATIC_BYTES = 0.10 * 2**30
"""Workspaces of cuBLAS and Transformer Engine, and masks: allocated bytes that belong to no tensor of the model. The
median of Megatron-LM's own CI runs is 78 MiB on A100 and 105 MiB on H100."""

GROUPED_BYTES = 4 * 32 * 2**20
"""Transformer Engine's grouped GEMM of experts runs on four streams with a 32 MiB workspace each (4 MiB on Ampere):
transformer_engine/pytorch/cpp_extensions/gemm.py; Megatron-LM's CI readings show both."""


class Term(NamedTuple):
    """Named bytes that activations or workspace consist of. `explain` shows them as count x bytes."""

    name: str
    """The catalogue has its words under `explain.<name>`."""
    bytes: Number
    unit: Literal["tokens", "patches", "elements", "bytes"] = "tokens"
    each: Number = 0
    """Bytes of one element, where the unit is elements."""
    layers: Number = 0
    """Layers that have these bytes together; 0 where they are not counted by layer."""


Terms = tuple[Term, ...]


LIBRARIES = Term("workspace_libraries", STATIC_BYTES, "bytes")


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
    moment: "Moment"
    """The peak moment."""
    terms: Terms
    """Parts of workspace, and of weights in 8 bits, that are there at every moment."""

    @property
    def peak(self) -> Number:
        """Return the bytes that torch's allocator has handed out."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.workspace


@frozen_dataclass
class Moment:
    """Bytes that a moment of a step needs beside those that are there at every moment."""

    gradients: Number = 0.0
    activations: Number = 0.0
    logits: Number = 0.0
    workspace: Number = 0.0
    terms: Callable[[], Terms] = tuple
    """Returns the parts of activations and workspace. Only `explain` calls it, and only for a single plan."""

    @property
    def total(self) -> Number:
        return self.gradients + self.activations + self.logits + self.workspace


def peak_moment(moments: list[Moment]) -> Moment:
    """Return the moment that needs most; a stage that holds the embedding alone has none."""
    best, most = Moment(), ZERO
    for moment in moments:
        total = moment.total
        more = total > most
        if isinstance(more, np.ndarray):
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
