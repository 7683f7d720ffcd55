"""Floating-point operations per token, from the operators of the layers; a multiply-add counts as two.

The forward pass takes 2 per weight and token. The backward pass takes 2 for the gradient of the input, if something
before it is trained, and 2 for the gradient of the weight, if the weight is trained. Attention has no weights: its
backward pass takes 2 x forward.
"""

from dataclasses import dataclass
from functools import lru_cache

from backend.estimate.array_ops import Number
from backend.estimate.model.layers import LayerKind
from backend.job.model.operators import (
    AltUp,
    Attention,
    BlockScores,
    ChosenKeys,
    IndexScores,
    Linear,
    Mixing,
    Recurrence,
    Streams,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flops:
    """Forward operations of one token (or patch) in one layer."""

    weights: float
    """Operations in projections."""
    attention: float
    """Operations in the attention core, per token of context; causal attention reads half of them."""
    recurrence: float
    """Operations in linear attention."""
    untrained: float = 0.0
    """Operations in projections without a backward pass."""
    index: float = 0.0
    """Operations of an indexer's scores, per token of context. It scores the whole square, and has no backward pass."""

    def forward(self, context: Number) -> Number:
        """Return the forward operations with `context` tokens in a sequence."""
        return self.weights + self.recurrence + self.untrained + (self.attention + self.index) * context

    def backward(self, context: Number, *, weights_trained: bool, inputs_need: bool) -> Number:
        """Return the backward operations; 0 if neither the layer nor anything before it is trained."""
        if not (weights_trained or inputs_need):
            return 0.0
        core = 2 * (self.recurrence + self.attention * context)
        return self.weights * (weights_trained + inputs_need) + core


@lru_cache(maxsize=1024)
def layer_flops(kind: LayerKind) -> Flops:
    """Return the operations of one layer of this kind."""
    weights = attention = recurrence = untrained = index = 0.0
    for operator in kind.operators:
        if isinstance(operator, Linear):
            operations = 2.0 * operator.inputs * operator.outputs * operator.active
            weights += 0.0 if operator.untrained else operations
            untrained += operations if operator.untrained else 0.0
        elif isinstance(operator, Attention):
            operations = 2.0 * operator.heads * (operator.key_dim + operator.value_dim)
            operations *= 1 + 1 / operator.entry if operator.entry else 1
            attention += operations / 2 if operator.causal else operations
        elif isinstance(operator, ChosenKeys):
            # The whole square.
            attention += 2.0 * operator.heads * (2 * operator.latent + operator.rotary)
        elif isinstance(operator, IndexScores):
            # The products of queries and keys, and their sum over the heads, by weight, which is no product in fp32.
            index += 2.0 * operator.heads * (operator.key_dim + (not operator.in_fp32)) / (operator.pooled or 1)
        elif isinstance(operator, BlockScores):
            # A query scores all keys, or all blocks, or the blocks before it.
            keys = 2.0 if operator.masked_heads else (1 + operator.scores_later) / operator.block
            index += operator.heads * operator.key_dim * keys
        elif isinstance(operator, Streams):
            # The convolution of n-grams, the matrix of a hyper-connection, and the product that mixes its streams.
            mixed = operator.copies if operator.step == "spread" and operator.rounds else 0
            recurrence += 2.0 * operator.copies * operator.width * (operator.convolution + operator.outputs + mixed)
        elif isinstance(operator, Recurrence | Mixing):
            recurrence += operator.flops
        elif isinstance(operator, AltUp) and operator.step == "predict":
            # The product of the copies and their coefficients has no weight.
            recurrence += 2.0 * operator.width * operator.copies**2
    return Flops(weights=weights, attention=attention, recurrence=recurrence, untrained=untrained, index=index)
