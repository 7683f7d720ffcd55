"""The contents of one pipeline stage: its layers, its parameters on one rank, and the trained part of them."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from numpy import ndarray

from backend.estimate.array_ops import Number
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.model.layers import LayerKind, ModelLayers, has_experts
from backend.estimate.model.parameters import layer_counts, padded_vocabulary, vision_parameters
from backend.estimate.plan import Plan
from backend.estimate.time.schedule import chunk_layers, equal_pieces
from backend.job.trained import Trained as Trained
from backend.job.trained import trained_parts as trained_parts


@dataclass(frozen=True, slots=True)
class Chunk:
    """A model chunk of a stage; equal chunks do the same work."""

    counts: tuple[int, ...]
    """Layers of each kind (ModelLayers.kinds)."""
    first: bool
    """Whether the chunk has the embedding and the vision tower."""
    last: bool
    """Whether the chunk has the output layer."""
    layers: int
    """Decoder layers of all kinds."""
    mtp: int = 0
    """MTP layers, which are counted in `counts` too, but not in `layers`."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Stage:
    """One pipeline stage. Stages are compared by identity, like layer kinds: layer_cut returns one object for each."""

    index: int
    first: bool
    last: bool
    chunks: tuple[Chunk, ...]
    counts: tuple[int, ...]
    """Layers of each kind in all chunks."""
    layers: int
    """Decoder layers of all kinds."""
    kinds: tuple[tuple[LayerKind, int], ...]
    """The layer kinds that occur on the stage, with their counts."""
    has_experts: bool
    """Whether one of its layers sends tokens to routed experts."""


class LayerCut(NamedTuple):
    """The layers of a model in the stages of a plan."""

    stages: tuple[Stage, ...]
    """First to last."""
    chunks: tuple[Chunk, ...]
    """The chunks that differ from each other."""
    places: tuple[tuple[int, ...], ...]
    """For each chunk of each stage, its index in `chunks`."""


def stages(layers: ModelLayers, plan: Plan) -> tuple[Stage, ...]:
    """Return the stages of a plan, first to last."""
    return layer_cut(layers, plan).stages


def layer_cut(layers: ModelLayers, plan: Plan) -> LayerCut:
    """Return the layers in the stages of a plan."""
    return _layer_cut(
        layers,
        plan.pipeline,
        plan.virtual_pipeline,
        plan.account_for_embedding,
        plan.account_for_loss,
        plan.pipeline_layout,
    )


@lru_cache(maxsize=4096)
def _layer_cut(
    layers: ModelLayers,
    pipeline: int,
    virtual: int,
    with_embedding: bool,
    with_loss: bool,
    layout: tuple[int, ...] | None,
) -> LayerCut:
    result = list[Stage]()
    order, kinds = layers.order, range(len(layers.kinds))
    pieces = layout or equal_pieces(len(order), pipeline * virtual, with_embedding=with_embedding, with_loss=with_loss)
    for index, bounds in enumerate(chunk_layers(pieces, pipeline)):
        chunks = tuple(
            Chunk(
                tuple(order[begin:end].count(kind) for kind in kinds),
                first=index == 0 and piece == 0,
                last=index == pipeline - 1 and piece == virtual - 1,
                layers=end - begin,
            )
            for piece, (begin, end) in enumerate(bounds)
        )
        if index == pipeline - 1 and layers.mtp:
            chunks = (*chunks[:-1], _with_mtp(chunks[-1], layers.mtp))
        counts = tuple(sum(chunk.counts[kind] for chunk in chunks) for kind in kinds)
        present = tuple((kind, count) for kind, count in zip(layers.kinds, counts, strict=True) if count)
        result.append(
            Stage(
                index=index,
                first=index == 0,
                last=index == pipeline - 1,
                chunks=chunks,
                counts=counts,
                layers=sum(chunk.layers for chunk in chunks),
                kinds=present,
                has_experts=any(has_experts(kind) for kind, _ in present),
            )
        )
    chunks = tuple(dict.fromkeys(chunk for stage in result for chunk in stage.chunks))
    return LayerCut(tuple(result), chunks, tuple(tuple(map(chunks.index, stage.chunks)) for stage in result))


def _with_mtp(chunk: Chunk, count: int) -> Chunk:
    """Return the last chunk with the MTP layers, which Megatron-Core puts there (get_mtp_num_layers_to_build)."""
    return replace(chunk, counts=(*chunk.counts[:-1], chunk.counts[-1] + count), mtp=count)


@frozen_dataclass
class RankParameters:
    """Parameters on one rank of a stage."""

    dense: Number
    """All parameters except experts, with the vision tower."""
    expert: Number
    trained_dense: Number
    trained_expert: Number


def rank_parameters(
    layers: ModelLayers, plan: Plan, stage: Stage, trained: Trained, vocabulary_padding: int = 1
) -> RankParameters:
    """Return exact counts in Megatron-Core's layout; the tower is whole on every TP rank of the first stage."""
    tensor, experts = plan.tensor, plan.expert * plan.expert_tensor
    if isinstance(tensor, ndarray) or isinstance(experts, ndarray):
        return _rank_parameters(layers, stage, tensor, experts, trained, vocabulary_padding)
    return _cached_rank_parameters(layers, stage, tensor, experts, trained, vocabulary_padding)


def _rank_parameters(
    layers: ModelLayers, stage: Stage, tensor: Number, experts: Number, trained: Trained, padding: int
) -> RankParameters:
    """Return the counts if `tensor` ranks divide a layer, and `experts` ranks its experts."""
    dense: Number = 0
    expert: Number = 0
    for kind, count in stage.kinds:
        counts = layer_counts(kind)
        dense = dense + count * (counts.split // tensor + counts.whole)
        if counts.expert:
            expert = expert + count * (counts.expert // experts)
    table = _table(layers, tensor, padding) if stage.first or stage.last else 0
    if stage.first:
        dense = dense + table + layers.positions + _stem(layers, tensor, padding)
    if stage.last:
        dense = dense + layers.output.hidden
        # A stage with both ends has one copy of a tied weight; with PP > 1 the first and the last stage each have one.
        if not (layers.tied and stage.first):
            dense = dense + table
        # MTP layers look up the next token. gpt_model.py allocates the output layer's weight beside the embedding.
        if layers.mtp and not stage.first:
            dense = dense + table
    language_dense, language_expert = (dense, expert) if trained.language else (0, 0)
    if stage.first and layers.vision:
        tower, merger, deep_stack = vision_parameters(layers.vision)
        dense = dense + tower + merger + deep_stack
        vision = tower * trained.tower + merger * trained.merger + deep_stack * trained.deep_stack
        language_dense = language_dense + vision
    return RankParameters(dense=dense, expert=expert, trained_dense=language_dense, trained_expert=language_expert)


_cached_rank_parameters = lru_cache(maxsize=4096)(_rank_parameters)


def _stem(layers: ModelLayers, tensor: Number, padding: int) -> Number:
    """Return the parameters on one rank of what runs before the layers, with the table of the layers' own embeddings.
    mcore-bridge gives it the padded vocabulary of the other table (1.6.5 model/mm_gpts/gemma4.py)."""
    if not layers.stem:
        return 0
    counts, width = layer_counts(layers.stem), layers.layer_inputs
    vocabulary = padded_vocabulary(layers.embedding // layers.output.hidden, tensor, padding)
    return counts.split // tensor + counts.whole + counts.expert + vocabulary * width // tensor


def _table(layers: ModelLayers, tensor: Number, padding: int) -> Number:
    hidden = layers.output.hidden
    return padded_vocabulary(layers.embedding // hidden, tensor, padding) * hidden // tensor
