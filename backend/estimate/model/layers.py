"""A model as layer kinds with their counts. Parameters, activations and FLOPs are computed from it.

model_layers.py creates it from a model's shape. A layer kind is the sequence of its operators
(backend/job/model/operators.py).

Layer kinds are compared by identity (eq=False). model_layers returns one object for each shape. Sums over its operators
are cached by this object, because hashing its fields would cost more than the sums.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeVar

from backend.job.model.operators import (
    Activation,
    AltUp,
    Attention,
    BlockScores,
    ChosenKeys,
    Dispatch,
    IndexScores,
    Linear,
    Operator,
    Parameters,
    Streams,
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerKind:
    """One kind of layer."""

    name: str
    hidden: int
    operators: tuple[Operator, ...]
    inputs: int = 0
    """Elements per token that a checkpoint around the layer keeps besides the residual stream."""
    buffer: int = 0
    """Elements that Hugging Face counts as parameters and Megatron keeps as a buffer (the router's balancing bias)."""
    of_images: "LayerKind | None" = None
    """The operators of cross-attention that read the vectors of images, and not the tokens of the sequence: the
    projections of keys and values. `operators` has all others."""


One = TypeVar(
    "One", Linear, AltUp, Attention, Activation, BlockScores, ChosenKeys, Dispatch, IndexScores, Parameters, Streams
)


@lru_cache(maxsize=1024)
def operators_of(kind: LayerKind, wanted: type[One]) -> tuple[One, ...]:
    """Return the operators of one type in a layer."""
    return tuple(operator for operator in kind.operators if isinstance(operator, wanted))


@lru_cache(maxsize=1024)
def table_weights(kind: LayerKind) -> int:
    """Return the weights of a layer's table of embeddings; 0 if it has none."""
    return sum(operator.count for operator in operators_of(kind, Parameters) if operator.looked_up)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TowerPart:
    """Equal layers of a vision tower that follow each other."""

    kind: LayerKind
    count: int
    joined: float = 1
    """Patches that are one row of these layers."""
    checkpointed: bool = True
    """Whether gradient checkpointing reaches them."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class VisionLayers:
    """The parts of a vision tower. Blocks and patch embedding run per patch, mergers per merged token."""

    patch_embedding: LayerKind
    positions: int
    """Elements of the learned positions."""
    other: int
    """Elements of the tower's other weights: a class token, norms around the blocks."""
    blocks: tuple[TowerPart, ...]
    """What follows the patch embedding."""
    patches_per_token: float
    """Patches that become one token of the language model, or one vector that its cross-attention reads."""
    merger: LayerKind
    merger_linears: Literal["own_names", "names_of_blocks", "none"]
    """As in VisionShape."""
    deep_stack_merger: LayerKind
    deep_stack: int
    merger_layers: tuple[TowerPart, ...] = ()
    """The layers of `merger` that gradient checkpointing recomputes if they are trained."""
    joins_images: bool = False
    """As in VisionShape."""
    kept: int = 0
    """As in VisionShape (backend/job/model/vision_shape.py)."""
    patches_need: bool = False
    """As in VisionShape."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ModelLayers:
    """A whole model. The decoder is a sequence of layers of one or more kinds."""

    embedding: int
    """Elements of the embedding table, without padding."""
    positions: int = 0
    """Elements of weights beside the layers, whole on every TP rank of the first stage: learned positions (GPT),
    embeddings of every layer (Gemma 3n)."""
    kinds: tuple[LayerKind, ...]
    """Kinds of decoder layers; each occurs. If there are MTP layers, the last kind is theirs."""
    order: tuple[int, ...]
    """For each decoder layer, first to last, the index of its kind."""
    output: LayerKind
    """Final norm and output projection."""
    stem: LayerKind | None = None
    """What runs once before the layers, besides the lookup of the embedding (Gemma 3n, Gemma 4)."""
    tied: bool
    softcap: bool = False
    """Whether tanh bounds the logits."""
    fp32_residual: bool = False
    """As in ModelShape (backend/job/model/shape.py)."""
    bare_embedding_norm: bool = False
    """As in ModelShape."""
    layer_inputs: int = 0
    """Width of the layers' own embeddings of a token, of all layers together, in Megatron's form. TP divides their
    table by the vocabulary, and `positions` does not have it."""
    vision: VisionLayers | None
    mtp: int = 0
    """Layers for multi-token prediction (MTP), which follow the decoder and predict with its output layer."""
    beside: tuple[LayerKind, int] | None = None
    """A kind of layers that hold weights and whose work is not counted, and their number."""

    @property
    def count(self) -> int:
        """Return the number of decoder layers."""
        return len(self.order)


@lru_cache(maxsize=1024)
def counted_kinds(layers: ModelLayers) -> tuple[tuple[LayerKind, int], ...]:
    """Return the kinds of layers, each with its number of layers."""
    counts = [layers.order.count(index) for index in range(len(layers.kinds))]
    counts[-1] += layers.mtp
    return tuple(zip(layers.kinds, counts, strict=True))


def held_kinds(layers: ModelLayers) -> tuple[tuple[LayerKind, int], ...]:
    """Return the kinds of layers that hold weights on a Hugging Face engine, each with its number of layers."""
    return (*counted_kinds(layers), layers.beside) if layers.beside else counted_kinds(layers)


@lru_cache(maxsize=1024)
def last_kinds(layers: ModelLayers, last: int) -> tuple[tuple[LayerKind, int], ...]:
    """Return the kinds of the last `last` decoder layers, each with its number of layers among them."""
    order = layers.order[-last:] if last > 0 else ()
    return tuple((kind, order.count(index)) for index, kind in enumerate(layers.kinds) if index in order)


@lru_cache(maxsize=1024)
def has_experts(kind: LayerKind) -> bool:
    """Return whether the layer sends tokens to routed experts."""
    return any(isinstance(operator, Dispatch) for operator in kind.operators)
