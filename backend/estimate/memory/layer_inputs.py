"""Memory of embeddings of the layers' own, and of keys that layers share, under Megatron-Core (Gemma 4 E2B, E4B)."""

import itertools

from backend.estimate.array_ops import Number, choose, larger
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.memory.megatron_layer import Run
from backend.estimate.memory.stage import Chunk
from backend.estimate.model.layers import ModelLayers, operators_of
from backend.estimate.plan import Plan
from backend.job.model.operators import Attention


@frozen_dataclass
class LayerInputs:
    """Bytes for one micro-batch of the layers' own embeddings (Gemma 4), and of the keys that layers share."""

    first: Number
    """What the first stage keeps."""
    received: Number
    """What each later chunk keeps of the tensor that it receives, beside its input."""
    keys: Number
    """The same of shared keys and values, if the layers that project them are on earlier stages."""
    borrowing: tuple[bool, ...]
    """For each kind of layers, whether it reads keys of an earlier layer."""
    gradients: Number
    """What the backward pass of a layer needs."""

    def of_chunk(self, chunk: Chunk) -> Number:
        """Return what a chunk keeps."""
        if chunk.first:
            return self.first
        borrows = all(self.borrowing[kind] for kind, count in enumerate(chunk.counts) if count)
        return self.received + self.keys if borrows else self.received


def layer_inputs(layers: ModelLayers, plan: Plan, run: Run) -> LayerInputs:
    """Return what the layers' own embeddings need (mcore-bridge 1.6.5 model/mm_gpts/gemma4.py Gemma4TextGPTModel).

    Every rank norms those of the whole sequence and of all channels, and keeps the channels of its part of TP for the
    layers. The norm keeps nothing if the weights are frozen. Between stages they come in one tensor with the keys and
    values that later layers share. With sequence parallelism the chunk reshapes them, which copies them
    (unpack_pp_input), and the first norm copies its input out of it. Each layer's backward pass makes a gradient of all
    layers' embeddings, and adds it to their sum.
    """
    one = 2 * layers.layer_inputs * plan.tokens / plan.tensor
    copies = choose(plan.sequence_parallel, choose(plan.tensor > 1, 2, 1), 1)
    cores = [operators_of(kind, Attention) for kind in layers.kinds]
    shared = {
        core.window: 2 * (core.key_dim + core.value_dim) * larger(core.kv_heads / plan.tensor, 1)
        for core in itertools.chain.from_iterable(cores)
        if core.borrows_keys
    }
    return LayerInputs(
        first=one * run.trained.language + (one * plan.tensor if run.weights_trained else 0.0),
        received=copies * one + 2 * layers.output.hidden * plan.tokens * plan.whole_share,
        keys=copies * plan.tokens * sum(shared.values()),
        borrowing=tuple([any(core.borrows_keys for core in each) for each in cores]),
        gradients=2 * one if run.weights_trained else 0.0,
    )
