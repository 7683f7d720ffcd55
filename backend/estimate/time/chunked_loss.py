"""Seconds that Liger's fused output layer and loss take beside its products and its logits.

It computes the logits of a chunk of tokens at a time, so every chunk reads the weight of the output layer again, and
adds to the gradient of that weight. The number of chunks depends on the vocabulary and not on the tokens, so small
micro-batches pay most. Read in Liger ead96b61, ops/fused_linear_cross_entropy.py.
"""

import numpy as np

from backend.estimate.array_ops import Number
from backend.estimate.model.layers import ModelLayers
from backend.estimate.model.load import Load
from backend.estimate.time.time_context import TimeContext

FROZEN_MOVED = 4
"""Bytes per weight and chunk of a weight in 16 bits that is not trained: two products read it."""
TRAINED_MOVED = 20
"""The same of a trained one: the product of the gradient is written, cast to fp32, and added to a sum in 16 bits."""
CAST_MOVED = 24
"""The same of a trained weight in fp32: autocast casts it for each of two products, which its cache does not help
because one of them takes a transposed view; the third product adds to a sum in fp32."""


def chunked_loss_seconds(layers: ModelLayers, time_context: TimeContext, load: Load, *, trained: bool) -> Number:
    """Return the seconds of one micro-batch; the first chunk is counted with the output layer."""
    moved = FROZEN_MOVED
    if trained:
        moved = CAST_MOVED if time_context.run.memory.autocast_bytes else TRAINED_MOVED
    hidden = layers.output.hidden
    again = chunks(layers.embedding // hidden, hidden, load) - 1
    return moved * layers.embedding * again / time_context.machine.memory


def chunks(vocabulary: int, hidden: int, load: Load) -> Number:
    """Return the chunks of a micro-batch. One has hidden / vocabulary of its tokens, rounded up to a power of two."""
    tokens = np.ceil(load.tokens / -(-vocabulary // hidden))
    return np.ceil(load.tokens / 2.0 ** np.ceil(np.log2(tokens)))
