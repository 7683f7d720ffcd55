"""Numbers of parameters of a layer kind and of a model."""

from dataclasses import dataclass
from functools import lru_cache

from backend.estimate.array_ops import Number
from backend.estimate.model.layers import LayerKind, ModelLayers, VisionLayers, held_kinds
from backend.job.model.operators import Linear, Mixing, Norm, Parameters, Recurrence, Streams


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """Parameters of one layer, by how tensor and expert parallelism divide them."""

    split: int
    whole: int
    expert: int

    @property
    def total(self) -> int:
        """Return the parameters of the unsharded layer."""
        return self.split + self.whole + self.expert


@lru_cache(maxsize=1024)
def layer_counts(kind: LayerKind) -> Counts:
    """Return the weights, biases and norms of one layer of this kind."""
    sums = {"split": 0, "whole": 0, "expert": 0}
    for operator in (*kind.operators, *(kind.of_images.operators if kind.of_images else ())):
        if isinstance(operator, Norm):
            sums["whole"] += operator.parameters
        elif isinstance(operator, Linear):
            sums[operator.share] += operator.copies * (operator.inputs * operator.outputs + operator.bias)
            sums["whole"] += operator.whole_bias
        elif isinstance(operator, Parameters):
            sums[operator.share] += operator.count
        elif isinstance(operator, Streams):
            sums["whole"] += operator.parameters
        elif isinstance(operator, Recurrence | Mixing):
            sums["split"] += operator.parameters
    return Counts(**sums)


def model_parameters(layers: ModelLayers) -> int:
    """Return the number of parameters of the model, as its Hugging Face class counts them."""
    output = layer_counts(layers.output).total - (layers.embedding if layers.tied else 0)
    total = layers.embedding + layers.positions + output + (layer_counts(layers.stem).total if layers.stem else 0)
    total += sum(count * (layer_counts(kind).total + kind.buffer) for kind, count in held_kinds(layers))
    total += layers.embedding // layers.output.hidden * layers.layer_inputs
    return total + (sum(vision_parameters(layers.vision)) if layers.vision else 0)


@lru_cache(maxsize=256)
def vision_parameters(vision: VisionLayers) -> tuple[int, int, int]:
    """Return the parameters of the tower (patches, positions, blocks), of the main merger and of the deep-stack
    mergers."""
    tower = layer_counts(vision.patch_embedding).total + vision.positions + vision.other
    tower += sum(part.count * layer_counts(part.kind).total for part in vision.blocks)
    deep_stack = vision.deep_stack * layer_counts(vision.deep_stack_merger).total
    return tower, layer_counts(vision.merger).total, deep_stack


def padded_vocabulary(vocab: int, tensor: Number, padding: int) -> Number:
    """Return the vocabulary in the engine's layout: a multiple of `padding` x TP (megatron-core pads to 128 x TP)."""
    unit = padding * tensor if padding > 1 else 1
    return -(-vocab // unit) * unit
