"""Memory of every stage of a plan under Megatron-Core, term by term, in bytes on one rank.

The formulas of the schedule and of tensor and sequence parallelism are those of Korthikanti et al. 2022 (arXiv
2205.05198). megatron_layer.py has the memory of one layer. The results were compared with published B200 runs.
"""

from collections.abc import Hashable
from functools import partial

from backend.estimate.array_ops import ZERO, Number, choose, larger
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.memo import Memo
from backend.estimate.memory.fp8 import fp8_pieces
from backend.estimate.memory.layer_inputs import LayerInputs, layer_inputs
from backend.estimate.memory.megatron_adapters import adapter_counts, tower_adapters
from backend.estimate.memory.megatron_layer import LayerCost, Run, element_bytes, layer_cost, tower_bytes
from backend.estimate.memory.megatron_workspace import cached_gradients
from backend.estimate.memory.memory_term import (
    Explanation,
    Piece,
    joined,
    piece,
    products_of,
    token_piece,
    trained_piece,
)
from backend.estimate.memory.stage import (
    Chunk,
    RankParameters,
    Stage,
    Trained,
    rank_parameters,
    stages,
)
from backend.estimate.memory.terms import (
    GROUPED,
    LIBRARIES,
    WITH_EXPERTS,
    Moment,
    StageMemory,
    peak_moment,
)
from backend.estimate.model.layers import ModelLayers
from backend.estimate.plan import Plan
from backend.estimate.time.schedule import in_flight
from backend.job.memory_traits import MemoryTraits

SOFTMAX_BYTES = 4
"""Bytes per token and vocabulary entry that a loss keeps for its backward pass: the softmax in fp32 (megatron-core
0.16.1 tensor_parallel/cross_entropy.py, fusions/fused_cross_entropy.py)."""


@frozen_dataclass
class PlanCosts:
    """Costs that are the same on every stage of a plan."""

    kinds: tuple[LayerCost, ...]
    """Costs of each kind of decoder layer (ModelLayers.kinds)."""
    unit: Number
    """Input of one unit of full recompute."""
    tower: Number
    """Saved activations of the vision tower for one micro-batch."""
    embedding: Number
    """What a norm of the embedding saves for one micro-batch. It runs before context and sequence parallelism split the
    sequence (mcore-bridge 1.6.5 model/mm_gpt_model.py _patch_word_embeddings)."""
    mtp_unit: Number
    """What an MTP layer keeps under full recompute: the hidden state and the embedding, which it reads, and its copy
    among the inputs of the output layer."""
    layer_inputs: LayerInputs | None = None
    """What embeddings of the layers' own need, if they have any."""
    passed_on: Number | None = None
    """The embedding that each chunk after the first passes on to the MTP layers in mcore-bridge's models with images;
    it arrives in one tensor with the chunk's input (1.6.5 model/gpt_model.py)."""


def pipeline_memory(
    layers: ModelLayers,
    plan: Plan,
    memory: MemoryTraits,
    trained: Trained | Run,
    costs: PlanCosts | None = None,
    memo: Memo | None = None,
) -> list[StageMemory]:
    """Return the memory of each stage, first to last; `memory` is in the precision of the run.

    `costs` do not depend on the cut of the layers into stages, so the caller may know them.
    """
    run = Run(trained=trained) if isinstance(trained, Trained) else trained
    costs = costs or plan_costs(layers, plan, memory, run)
    contents: dict[tuple[bool, bool, tuple[int, ...]], _Contents] = memo.stages if memo else {}
    chunk_saved: dict[Hashable, Number] = memo.chunks if memo else {}
    memories = []
    for stage in stages(layers, plan):
        # Inner stages often have the same contents; only the micro-batches in flight differ.
        alike = (stage.first, stage.last, stage.counts)
        if alike not in contents:
            contents[alike] = _stage_contents(layers, plan, memory, run, stage, costs)
        saved = _saved(plan, stage, costs, chunk_saved)
        memories.append(_stage_memory(stage, saved, contents[alike]))
    return memories


def plan_costs(layers: ModelLayers, plan: Plan, memory: MemoryTraits, run: Run) -> PlanCosts:
    """Return the costs of the layers of a plan, on any stage."""
    unit = element_bytes(memory) * layers.output.hidden * plan.tokens * plan.whole_share
    return PlanCosts(
        kinds=tuple([layer_cost(kind, plan, memory, run) for kind in layers.kinds]),
        unit=unit,
        mtp_unit=3 * unit,
        passed_on=unit if layers.mtp and layers.vision else None,
        tower=tower_bytes(layers.vision, plan, memory, run.trained) if layers.vision else 0.0,
        embedding=_embedding_norm(layers, plan, run),
        layer_inputs=layer_inputs(layers, plan, run) if layers.layer_inputs else None,
    )


def _embedding_norm(layers: ModelLayers, plan: Plan, run: Run) -> Number:
    """Return the fp32 copy of the embeddings that their norm saves, if the embedding is trained."""
    if not layers.bare_embedding_norm or not run.weights_trained:
        return 0.0
    return 4 * layers.output.hidden * plan.tokens * plan.context


@frozen_dataclass
class _Contents:
    """Bytes of a stage that do not depend on the micro-batches in flight."""

    parameters: RankParameters
    weights: Piece
    gradients: Piece
    optimizer: Piece
    """Optimizer states on the GPU."""
    host: Number
    """Bytes in host memory: the offloaded states."""
    workspace: Piece
    """What is there at every moment."""
    peak: Moment


def _stage_contents(
    layers: ModelLayers, plan: Plan, memory: MemoryTraits, run: Run, stage: Stage, costs: PlanCosts
) -> _Contents:
    parameters = _stage_parameters(layers, plan, memory, run, stage)
    count = parameters.trained_dense + parameters.trained_expert
    optimizer, host = _optimizer(plan, memory, parameters)
    workspace = WITH_EXPERTS if stage.has_experts else LIBRARIES
    if memory.cached_weight_gradients and run.weights_trained:
        cached = piece("workspace_cached", cached_gradients(layers, plan, stage), bytes_each=2, elements=None)
        workspace = joined(LIBRARIES, cached, GROUPED) if stage.has_experts else joined(LIBRARIES, cached)
    if costs.layer_inputs is not None:
        workspace = joined(workspace, token_piece("workspace_layer_inputs", costs.layer_inputs.gradients, plan))
    moments = [costs.kinds[kind].moment for kind, count in enumerate(stage.counts) if count]
    if stage.last:
        moments += _head_moments(layers, plan, memory, run)
    return _Contents(
        parameters=parameters,
        weights=_weights(memory, run, parameters, count, fp8_pieces(plan, stage, memory, reference=run.reference)),
        gradients=trained_piece("gradients", memory.gradient_bytes, count, parameters),
        optimizer=optimizer,
        host=host,
        workspace=workspace,
        peak=peak_moment(moments),
    )


def _weights(
    memory: MemoryTraits, run: Run, parameters: RankParameters, trained: Number, in_8_bits: tuple[Piece, ...]
) -> Piece:
    every = parameters.dense + parameters.expert
    each, element = memory.weight_bytes, element_bytes(memory)
    frozen = element * (every - trained)
    copy = each * every if run.reference else 0

    def products() -> Explanation:
        return joined(
            trained_piece("weights", each, trained, parameters),
            piece("weights_frozen", frozen, bytes_each=element, frozen=None),
            piece("weights_reference", copy, bytes_each=each, parameters=None),
            *in_8_bits,
        ).products()

    size = each * trained + frozen + copy
    for part in in_8_bits:
        size = size + part.bytes
    return Piece(size, products)


def _optimizer(plan: Plan, memory: MemoryTraits, parameters: RankParameters) -> tuple[Piece, Number]:
    """Return the optimizer states on the GPU, and the bytes on the host."""
    each, offloaded = memory.optimizer_bytes, plan.offload_fraction
    share = plan.optimizer_share(parameters.trained_dense, parameters.trained_expert)
    every = each * share
    away = every * offloaded
    # Adam on the host also needs the gradients in fp32.
    return Piece(every - away, partial(_optimizer_products, plan, each, share, parameters)), away * (1 + 4 / each)


def _optimizer_products(plan: Plan, each: float, share: Number, parameters: RankParameters) -> Explanation:
    ranks, offloaded = (plan.optimizer_shards, plan.expert_optimizer_shards), plan.offload_fraction
    kept = {"kept_on_gpu": 1 - offloaded} if offloaded else {}
    return trained_piece("optimizer", each, share, parameters, ranks, **kept).products()


def _stage_memory(stage: Stage, saved: Piece, contents: _Contents) -> StageMemory:
    weights, gradients, optimizer, peak = contents.weights, contents.gradients, contents.optimizer, contents.peak
    workspace = contents.workspace
    return StageMemory(
        stage=stage.index,
        layers=stage.layers,
        parameters=contents.parameters,
        weights=weights.bytes,
        gradients=gradients.bytes,
        optimizer=optimizer.bytes,
        activations=saved.bytes + peak.activations,
        logits=peak.logits,
        workspace=workspace.bytes + peak.workspace,
        host=contents.host,
        products=products_of(weights, gradients, optimizer, saved, peak, workspace),
    )


def _stage_parameters(layers: ModelLayers, plan: Plan, memory: MemoryTraits, run: Run, stage: Stage) -> RankParameters:
    """Return the parameters on one rank; with adapters only the adapters are trained."""
    parameters = rank_parameters(layers, plan, stage, run.trained, memory.vocabulary_padding)
    if not run.adapters:
        return parameters
    dense: Number = 0
    expert: Number = 0
    for kind, count in stage.kinds if run.trained.language else ():
        counts = adapter_counts(kind, run.adapters)
        dense = dense + count * (counts.split // plan.tensor + counts.whole)
        expert = expert + count * (counts.expert // (plan.expert * plan.expert_tensor))
    if stage.first and layers.vision and run.trained.tower:
        dense = dense + tower_adapters(layers.vision, run.adapters)
    return RankParameters(
        dense=parameters.dense + dense,
        expert=parameters.expert + expert,
        trained_dense=dense,
        trained_expert=expert,
    )


def _saved(plan: Plan, stage: Stage, costs: PlanCosts, chunk_saved: dict[Hashable, Number]) -> Piece:
    """Return the saved activations of every micro-batch in flight. `chunk_saved` caches those of chunks."""
    counts = in_flight(plan.pipeline, plan.virtual_pipeline, plan.micro_batches, stage.index)
    total: Number = counts[0] * (costs.tower + costs.embedding) if stage.first else 0.0
    for place, chunk in enumerate(stage.chunks):
        flying = counts[place]
        if costs.passed_on is not None and not chunk.first:
            total = total + flying * costs.passed_on
        if costs.layer_inputs is not None:
            total = total + flying * costs.layer_inputs.of_chunk(chunk)
        sizes = chunk.counts
        if sizes not in chunk_saved:
            chunk_saved[sizes] = _chunk_saved(plan, costs, chunk)
        if len(counts) > 2 and isinstance(flying, int):
            # All chunks except the last mostly keep the activations of PP micro-batches.
            full = (sizes, flying)
            if full not in chunk_saved:
                chunk_saved[full] = flying * chunk_saved[sizes]
            total = total + chunk_saved[full]
        else:
            total = total + flying * chunk_saved[sizes]
    return Piece(total, partial(_saved_products, plan, stage, costs, counts))


def _saved_products(plan: Plan, stage: Stage, costs: PlanCosts, counts: tuple[Number, ...]) -> Explanation:
    """Return the products of the saved activations; `counts` are the micro-batches in flight in each chunk."""
    chunks = list(zip(stage.chunks, counts, strict=True))
    pieces = []
    if plan.full_recompute:
        units = sum(_units(plan, chunk) * flying for chunk, flying in chunks)
        pieces.append(token_piece("activations_inputs", units * costs.unit, plan, unit_micro_batches=units))
        held = sum(_held(costs, chunk) * flying for chunk, flying in chunks)
        pieces.append(token_piece("activations_choices", held, plan))
        live = sum(chunk.mtp * flying for chunk, flying in chunks)
        pieces.append(token_piece("activations_mtp", live * costs.mtp_unit, plan, layer_micro_batches=live))
    else:
        for index, cost in enumerate(costs.kinds):
            live = sum(chunk.counts[index] * flying for chunk, flying in chunks)
            pieces.append(token_piece(f"activations_{cost.name}", live * cost.saved, plan, layer_micro_batches=live))
    if costs.passed_on is not None:
        live = sum(flying for chunk, flying in chunks if not chunk.first)
        pieces.append(token_piece("activations_passed_on", live * costs.passed_on, plan, micro_batches=live))
    if costs.layer_inputs is not None:
        kept = sum(costs.layer_inputs.of_chunk(chunk) * flying for chunk, flying in chunks)
        pieces.append(token_piece("activations_layer_inputs", kept, plan))
    if stage.first:
        sizes = {"micro_batches": counts[0], "patches": plan.vision_patches}
        pieces.append(piece("activations_tower", counts[0] * costs.tower, **sizes, bytes_per_patch=None))
        pieces.append(token_piece("activations_embedding", counts[0] * costs.embedding, plan, micro_batches=counts[0]))
    return joined(*pieces).products()


def _chunk_saved(plan: Plan, costs: PlanCosts, chunk: Chunk) -> Number:
    """Return the saved activations of one micro-batch in a chunk."""
    full = plan.full_recompute
    inputs, every = ZERO, ZERO
    if full is not False:
        inputs = _units(plan, chunk) * costs.unit + _held(costs, chunk)
        if chunk.mtp:
            inputs = inputs + chunk.mtp * costs.mtp_unit
    if full is not True:
        for kind, count in enumerate(chunk.counts):
            every = every + count * costs.kinds[kind].saved
    return choose(full, inputs, every)


def _held(costs: PlanCosts, chunk: Chunk) -> Number:
    """Return what the layers of a chunk keep beside the inputs of the units of full recompute."""
    held = ZERO
    for kind, count in enumerate(chunk.counts):
        held = held + count * costs.kinds[kind].held
    return held


def _units(plan: Plan, chunk: Chunk) -> Number:
    """Return the units of full recompute of decoder layers in a chunk."""
    return -(-chunk.layers // plan.recompute_layers)


def _head_moments(layers: ModelLayers, plan: Plan, memory: MemoryTraits, run: Run) -> list[Moment]:
    """Return the moments of the loss and of the backward pass of the output layer."""
    hidden = layers.output.hidden
    vocabulary = layers.embedding // hidden
    element, tokens = element_bytes(memory), plan.tokens
    logits = tokens * vocabulary / plan.tensor
    # With sequence parallelism the gathered input, and the gradient before its reduction, are whole.
    gathered = choose(plan.sequence_parallel, 2 * element * hidden * tokens, 0.0)
    own_gradient = run.weights_trained and not memory.cached_weight_gradients
    weight = element * vocabulary * hidden / plan.tensor if own_gradient else 0.0
    # The losses of MTP come first. Their backward passes come last, so each keeps its softmax until then, and the last
    # one's logits have a name until the loss is returned (megatron-core 0.16.1 models/gpt/gpt_model.py _postprocess).
    # tanh saves its output (mcore-bridge 1.6.5 model/mm_gpts/gemma4.py _forward_output_layer).
    kept = SOFTMAX_BYTES * layers.mtp + element * layers.softcap
    named = element if layers.mtp else 0.0
    most = larger(memory.logits_forward_bytes + named, memory.logits_backward_bytes) + kept
    norm = 2 * element * hidden * tokens * plan.whole_share

    def products(logits_bytes: Number, gathered: Number, weight: Number) -> Explanation:
        sizes = {"tokens": tokens, "vocabulary": vocabulary}
        return joined(
            token_piece("activations_output", norm, plan),
            piece("logits", logits_bytes, plan.tensor, bytes_each=None, **sizes),
            token_piece("workspace_gathered_input", gathered, plan),
            piece("workspace_output_gradient", weight, bytes_each=element, elements=None),
        ).products()

    in_loss, in_backward = most * logits, (element + kept) * logits
    return [
        Moment(0.0, norm, in_loss, 0.0, partial(products, in_loss, 0.0, 0.0)),
        Moment(0.0, norm, in_backward, gathered + weight, partial(products, in_backward, gathered, weight)),
    ]
