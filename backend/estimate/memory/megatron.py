"""Memory of every stage of a plan under Megatron-Core, term by term, in bytes on one rank.

The formulas of the schedule and of tensor and sequence parallelism are those of Korthikanti et al. 2022 (arXiv
2205.05198). saved_activations.py has the saved tensors of Transformer Engine's modules. The results were compared with
published B200 runs.
"""

from collections.abc import Callable, Hashable
from dataclasses import fields

from backend.estimate.array_ops import Number, choose, larger
from backend.estimate.frozen_dataclass import frozen_dataclass
from backend.estimate.memo import Memo
from backend.estimate.memory.fp8 import fp8_terms
from backend.estimate.memory.megatron_adapters import Adapters, adapter_bytes, adapter_counts, tower_adapters
from backend.estimate.memory.megatron_workspace import cached_gradients, expert_copies, ffn_gradients, largest_weight
from backend.estimate.memory.saved_activations import EagerForm, SavedBytes, eager_bytes, fused_bytes, recomputed_bytes
from backend.estimate.memory.stage import RankParameters, Stage, Trained, rank_parameters, stages
from backend.estimate.memory.terms import (
    GROUPED_BYTES,
    LIBRARIES,
    STATIC_BYTES,
    Moment,
    StageMemory,
    Term,
    Terms,
    peak_moment,
)
from backend.estimate.model.layers import LayerKind, ModelLayers, VisionLayers, has_experts, operators_of
from backend.estimate.plan import Plan
from backend.estimate.time.schedule import in_flight
from backend.job.model.operators import Attention
from backend.job.traits import MemoryTraits


@frozen_dataclass
class LayerCost:
    """One layer of a kind on one rank."""

    saved: Number
    """Saved activations of one micro-batch, without full recompute."""
    moment: Moment
    """The bytes that its backward pass needs beside them."""


@frozen_dataclass
class PlanCosts:
    """Costs that are the same on every stage of a plan."""

    kinds: tuple[LayerCost, ...]
    """Costs of each kind of decoder layer (ModelLayers.kinds)."""
    unit: Number
    """Input of one unit of full recompute."""
    tower: Number
    """Saved activations of the vision tower for one micro-batch."""


@frozen_dataclass
class Run:
    """What a Megatron run trains, and whether a reference model is beside it."""

    trained: Trained
    adapters: Adapters | None = None
    """LoRA adapters; all other weights are frozen then."""
    reference: bool = False
    """DPO: a frozen copy of the model is present."""

    @property
    def weights_trained(self) -> bool:
        """Return whether the decoder's own weights are trained."""
        return self.trained.language and not self.adapters


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
        memories.append(_stage_memory(plan, memory, stage, saved, contents[alike]))
    return memories


def plan_costs(layers: ModelLayers, plan: Plan, memory: MemoryTraits, run: Run) -> PlanCosts:
    """Return the costs of the layers of a plan, on any stage."""
    return PlanCosts(
        kinds=tuple(layer_cost(kind, plan, memory, run) for kind in layers.kinds),
        unit=element_bytes(memory) * layers.output.hidden * plan.tokens * plan.whole_share,
        tower=tower_bytes(layers.vision, plan, memory, run.trained) if layers.vision else 0.0,
    )


def element_bytes(memory: MemoryTraits) -> float:
    """Return the bytes of an element of an activation, which are those of a weight."""
    return memory.weight_bytes


@frozen_dataclass
class _Contents:
    """Bytes of a stage that do not depend on the micro-batches in flight."""

    parameters: RankParameters
    weights: Number
    gradients: Number
    optimizer: Number
    """Optimizer states on the GPU and on the host."""
    workspace: Number
    terms: Terms
    """Parts of `workspace`, and the 8-bit copies among `weights`."""
    peak: Moment


def _stage_contents(
    layers: ModelLayers, plan: Plan, memory: MemoryTraits, run: Run, stage: Stage, costs: PlanCosts
) -> _Contents:
    parameters = _stage_parameters(layers, plan, memory, run, stage)
    count = parameters.trained_dense + parameters.trained_expert
    frozen = parameters.dense + parameters.expert - count
    reference = frozen + count if run.reference else 0
    shards = plan.optimizer_share(parameters.trained_dense, parameters.trained_expert)
    in_8_bits = fp8_terms(layers, plan, stage, memory, reference=run.reference)
    workspace: Number = STATIC_BYTES
    terms: Terms = (*in_8_bits, LIBRARIES)
    if memory.cached_weight_gradients and run.weights_trained:
        cached = cached_gradients(layers, plan, stage)
        workspace, terms = cached + workspace, (Term("workspace_cached", cached, "elements", 2), *terms)
    if any(has_experts(kind) for kind, _ in stage.kinds(layers)):
        workspace, terms = workspace + GROUPED_BYTES, (*terms, Term("workspace_grouped", GROUPED_BYTES, "bytes"))
    moments = [cost.moment for cost, count in zip(costs.kinds, stage.counts, strict=True) if count]
    if stage.last:
        moments += _head_moments(layers, plan, memory, run)
    return _Contents(
        parameters=parameters,
        weights=memory.weight_bytes * (count + reference)
        + element_bytes(memory) * frozen
        + sum(term.bytes for term in in_8_bits),
        gradients=memory.gradient_bytes * count,
        optimizer=memory.optimizer_bytes * shards,
        workspace=workspace,
        terms=terms,
        peak=peak_moment(moments),
    )


def _stage_memory(plan: Plan, memory: MemoryTraits, stage: Stage, saved: Number, contents: _Contents) -> StageMemory:
    peak, offloaded = contents.peak, contents.optimizer * plan.offload_fraction
    return StageMemory(
        stage=stage.index,
        layers=sum(stage.counts),
        parameters=contents.parameters,
        weights=contents.weights,
        gradients=contents.gradients,
        optimizer=contents.optimizer - offloaded,
        activations=saved + peak.activations,
        logits=peak.logits,
        workspace=contents.workspace + peak.workspace,
        # Adam on the host also needs the gradients in fp32.
        host=offloaded * (1 + 4 / memory.optimizer_bytes),
        moment=peak,
        terms=contents.terms,
    )


def _stage_parameters(layers: ModelLayers, plan: Plan, memory: MemoryTraits, run: Run, stage: Stage) -> RankParameters:
    """Return the parameters on one rank; with adapters only the adapters are trained."""
    parameters = rank_parameters(layers, plan, stage, run.trained, memory.vocabulary_padding)
    if not run.adapters:
        return parameters
    dense: Number = 0
    expert: Number = 0
    for kind, count in stage.kinds(layers) if run.trained.language else ():
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


def _saved(plan: Plan, stage: Stage, costs: PlanCosts, chunk_saved: dict[Hashable, Number]) -> Number:
    """Return the saved activations of every micro-batch in flight. `chunk_saved` caches those of chunks."""
    counts = in_flight(plan.pipeline, plan.virtual_pipeline, plan.micro_batches, stage.index)
    total: Number = counts[0] * costs.tower if stage.first else 0.0
    for chunk, flying in zip(stage.chunks, counts, strict=True):
        sizes = chunk.counts
        if sizes not in chunk_saved:
            chunk_saved[sizes] = _chunk_saved(plan, costs, sizes)
        if isinstance(flying, int) and len(counts) > 2:
            # All chunks except the last mostly keep the activations of PP micro-batches.
            full = (sizes, flying)
            if full not in chunk_saved:
                chunk_saved[full] = flying * chunk_saved[sizes]
            total = total + chunk_saved[full]
        else:
            total = total + flying * chunk_saved[sizes]
    return total


def _chunk_saved(plan: Plan, costs: PlanCosts, counts: tuple[int, ...]) -> Number:
    """Return the saved activations of one micro-batch in a chunk with this number of layers of each kind."""
    inputs = -(-sum(counts) // plan.recompute_layers) * costs.unit
    every: Number = 0.0
    for cost, count in zip(costs.kinds, counts, strict=True):
        every = every + count * cost.saved
    return choose(plan.full_recompute, inputs, every)


def layer_cost(kind: LayerKind, plan: Plan, memory: MemoryTraits, run: Run) -> LayerCost:
    """Return what a layer keeps, and what its backward pass needs beside that.

    The backward pass needs what it recomputes, the gradients of the FFN, and the gradient of one weight. The forward
    pass needs the copies of tokens that go to experts and back. The larger of both counts.
    """
    attention = next(iter(operators_of(kind, Attention)), None)
    scale = element_bytes(memory) / 2
    adapters = run.adapters if run.trained.language else None

    def saved_without(modules: tuple[str, ...]) -> SavedBytes:
        return fused_bytes(kind, modules, run.trained.language, plan.context_a2a, memory.fp8)

    saved = scale * _spread(_by_modules(plan, saved_without), plan, attention)
    if adapters:
        outputs, gathered, masked = adapter_bytes(kind, adapters)
        saved = saved + scale * plan.tokens * (outputs + gathered * (1 - plan.whole_share))
        saved = saved + scale * _spread(masked, plan, attention)
    again = _by_modules(plan, lambda modules: recomputed_bytes(kind, modules, memory.fp8))
    revived = scale * _spread(again, plan, attention)
    work = scale * ffn_gradients(kind, plan, adapters)
    if attention and not plan.flash_attention:
        entries = plan.tokens * attention.heads * plan.sequence_length / plan.context / plan.tensor
        probabilities = 2 * scale * entries
        work = larger(work, probabilities)
        recomputed = plan.attention_recompute
        revived = revived + choose(recomputed, probabilities, 0.0)
        # Dropout keeps a mask of bytes and its output.
        dropped = (1 + 2 * scale) * entries if plan.attention_dropout else 0.0
        saved = saved + choose(recomputed, 0.0, probabilities + dropped)
    revived = choose(plan.full_recompute, plan.recompute_layers * saved, revived)
    weight: Number = 0.0
    if run.weights_trained and not memory.cached_weight_gradients:
        weight = 2 * scale * largest_weight(kind, plan)
    backward = work + weight
    copies = scale * expert_copies(kind, plan, adapters)

    def terms() -> Terms:
        recomputed = Term(
            "activations_recomputed", revived, layers=choose(plan.full_recompute, plan.recompute_layers, 1)
        )
        if copies > backward:
            return recomputed, Term("workspace_experts", copies)
        name = "workspace_ffn" if plan.flash_attention or not attention else "workspace_attention"
        return recomputed, Term("workspace_weight_gradient", weight, "elements", 2 * scale), Term(name, work)

    moment = Moment(activations=revived, workspace=larger(backward, copies), terms=terms)
    return LayerCost(saved=saved, moment=moment)


def _by_modules(plan: Plan, saved: Callable[[tuple[str, ...]], SavedBytes]) -> SavedBytes:
    """Return `saved(recomputed modules)` of the plan, entry by entry if plans differ in these modules."""
    if not plan.recompute_choices:
        return saved(plan.recompute_modules)

    def field_bytes(name: str) -> Number:
        return plan.by_recompute(lambda _, modules: float(getattr(saved(modules), name)))

    return SavedBytes(**{field.name: field_bytes(field.name) for field in fields(SavedBytes)})


def _spread(saved: SavedBytes, plan: Plan, attention: Attention | None) -> Number:
    """Return the bytes on one rank for a micro-batch, from bytes per token."""
    unsplit = saved.whole + saved.routed + saved.dispatched * plan.expert_tensor
    divided = saved.split / plan.tensor
    if attention:
        divided = divided + saved.groups * larger(1 / plan.tensor, 1 / attention.kv_heads)
    return plan.tokens * (unsplit * plan.whole_share + divided)


def tower_bytes(vision: VisionLayers, plan: Plan, memory: MemoryTraits, trained: Trained) -> Number:
    """Return the bytes of the vision tower: the Hugging Face module, whole on each rank. Only full recompute affects
    it."""
    element = int(element_bytes(memory))
    form = EagerForm(element=element, residual=element)
    per_merged_token = eager_bytes(vision.merger, form) * trained.merger
    per_merged_token += vision.deep_stack * eager_bytes(vision.deep_stack_merger, form) * trained.deep_stack
    merged = vision.patches_per_token
    per_patch: Number = per_merged_token / merged
    if trained.tower:
        block = choose(plan.full_recompute, element * vision.block.hidden, eager_bytes(vision.block, form))
        per_patch = per_patch + vision.depth * block + eager_bytes(vision.patch_embedding, form)
    return plan.vision_patches * per_patch


def _head_moments(layers: ModelLayers, plan: Plan, memory: MemoryTraits, run: Run) -> list[Moment]:
    """Return the moments of the loss and of the backward pass of the output layer."""
    hidden = layers.output.hidden
    vocabulary = layers.embedding // hidden
    element = element_bytes(memory)
    norm = 2 * element * hidden * plan.tokens * plan.whole_share
    logits = plan.tokens * vocabulary / plan.tensor
    # With sequence parallelism the gathered input, and the gradient before its reduction, are whole.
    gathered = choose(plan.sequence_parallel, 2 * element * hidden * plan.tokens, 0.0)
    own_gradient = run.weights_trained and not memory.cached_weight_gradients
    weight = element * vocabulary * hidden / plan.tensor if own_gradient else 0.0
    most = larger(memory.logits_forward_bytes, memory.logits_backward_bytes)

    def terms() -> Terms:
        return (
            Term("activations_output", norm),
            Term("workspace_gathered_input", gathered),
            Term("workspace_output_gradient", weight, "elements", element),
        )

    return [
        Moment(activations=norm, logits=most * logits, terms=lambda: terms()[:1]),
        Moment(activations=norm, logits=element * logits, workspace=gathered + weight, terms=terms),
    ]
