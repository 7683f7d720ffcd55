"""The terms that the memory of a stage is reported in, and the moments of a step among which its peak is found."""

import numpy as np

from backend.estimate.array_ops import ZERO, Number, choose
from backend.estimate.frozen_dataclass import record
from backend.estimate.memory.stage import RankParameters

STATIC_BYTES = 0.10 * 2**30
"""Workspaces of cuBLAS and Transformer Engine and masks: allocator bytes that are in no tensor of the model; the
median of Megatron-LM's own CI runs is 78 MiB on A100 and 105 MiB on H100."""

GROUPED_BYTES = 4 * 32 * 2**20
"""Transformer Engine's grouped GEMM of experts runs on four streams with a 32 MiB workspace each (4 MiB on Ampere):
transformer_engine/pytorch/cpp_extensions/gemm.py; Megatron-LM's CI readings show both."""


@record
class StageMemory:
    """Bytes on one rank of a stage at its fullest moment; the terms add up to `peak`."""

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
    """Of this rank in host memory; no part of `peak`."""

    @property
    def peak(self) -> Number:
        """What torch's allocator has handed out."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.workspace


@record
class Moment:
    """What a moment of a step needs on top of what is there all the time."""

    gradients: Number = 0.0
    activations: Number = 0.0
    logits: Number = 0.0
    workspace: Number = 0.0

    @property
    def total(self) -> Number:
        return self.gradients + self.activations + self.logits + self.workspace


def fullest_moment(moments: list[Moment]) -> Moment:
    """The moment that needs most; a stage that holds the embedding alone has none."""
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
