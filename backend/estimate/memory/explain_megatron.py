"""The memory of a Megatron stage taken apart into products of named numbers."""

from collections.abc import Iterator

from backend.estimate.array_ops import Number
from backend.estimate.memory.megatron import LayerCost, PlanCosts, Run, element_bytes, head_moments, plan_costs
from backend.estimate.memory.megatron_workspace import cached_gradients, expert_copies, largest_weight
from backend.estimate.memory.memory_term import Part, logits_part, part, share
from backend.estimate.memory.stage import Stage, stages
from backend.estimate.memory.terms import GROUPED_BYTES, STATIC_BYTES, Moment, StageMemory
from backend.estimate.model.layers import LayerKind, ModelLayers
from backend.estimate.plan import Plan
from backend.estimate.time.schedule import in_flight
from backend.job.traits import MemoryTraits


def megatron_parts(
    layers: ModelLayers, plan: Plan, traits: MemoryTraits, run: Run, memory: StageMemory
) -> Iterator[Part]:
    """Every part of every term of one stage."""
    stage = stages(layers, plan)[memory.stage]
    costs = plan_costs(layers, plan, traits, run)
    yield from _states(plan, traits, run, memory)
    yield from _saved(plan, stage, costs)
    yield from _fullest(layers, plan, traits, run, stage, costs)
    if traits.cached_weight_gradients and run.weights_trained:
        yield part("workspace_cached", bytes_each=2, elements=cached_gradients(layers, plan, stage) / 2)
    yield part("workspace_libraries", bytes=STATIC_BYTES)
    if stage.sparse:
        yield part("workspace_grouped", bytes=GROUPED_BYTES)


def _states(plan: Plan, traits: MemoryTraits, run: Run, memory: StageMemory) -> Iterator[Part]:
    parameters = memory.parameters
    kept = {"kept_on_gpu": 1 - plan.offload_fraction} if plan.offload_fraction else {}
    for kind, count, shards in (
        ("dense", parameters.trained_dense, plan.optimizer_shards),
        ("expert", parameters.trained_expert, plan.expert_optimizer_shards),
    ):
        trained = {f"{kind}_trained": count}
        yield part(f"weights_{kind}", bytes_each=traits.weight_bytes, **trained)
        yield part(f"gradients_{kind}", bytes_each=traits.gradient_bytes, **trained)
        yield part(f"optimizer_{kind}", bytes_each=traits.optimizer_bytes, **trained, **share(shards), **kept)
    every = parameters.dense + parameters.expert
    frozen = every - parameters.trained_dense - parameters.trained_expert
    yield part("weights_frozen", bytes_each=element_bytes(traits), frozen=frozen)
    if run.reference:
        yield part("weights_reference", bytes_each=traits.weight_bytes, parameters=every)


def _saved(plan: Plan, stage: Stage, costs: PlanCosts) -> Iterator[Part]:
    """Layers x micro-batches in flight x what one layer keeps of one micro-batch, and the tower's images."""
    counts = in_flight(plan.pipeline, plan.virtual_pipeline, plan.micro_batches, stage.index)
    if plan.full_recompute:
        units = sum(-(-(chunk.dense + chunk.sparse) // plan.recompute_layers) * flying
                    for chunk, flying in zip(stage.chunks, counts, strict=True))  # fmt: skip
        each = costs.unit / plan.tokens
        yield part("activations_inputs", unit_micro_batches=units, tokens=plan.tokens, bytes_per_token=each)
    else:
        for index, (name, cost) in enumerate((("dense", costs.dense), ("sparse", costs.sparse))):
            held = sum(chunk[index] * flying for chunk, flying in zip(stage.chunks, counts, strict=True))
            if cost and held:
                yield _of_tokens(f"activations_{name}", plan, cost.kept, layer_micro_batches=held)
    if stage.first and costs.tower:
        each = costs.tower / plan.vision_patches
        yield part("activations_tower", micro_batches=counts[0], patches=plan.vision_patches, bytes_per_patch=each)


def _fullest(
    layers: ModelLayers, plan: Plan, traits: MemoryTraits, run: Run, stage: Stage, costs: PlanCosts
) -> Iterator[Part]:
    """What the fullest moment of a step needs besides: that of the layers here, or of the output layer."""
    present = ((layers.dense, costs.dense, stage.dense), (layers.sparse, costs.sparse, stage.sparse))
    moments: list[tuple[Moment, list[Part]]] = [
        (cost.moment, list(_layer(kind, cost, plan, traits, run))) for kind, cost, count in present
        if kind and cost and count
    ]  # fmt: skip
    if stage.last:
        heads = head_moments(layers, plan, traits, run)
        moments += [(moment, list(_head(layers, moment, plan, traits))) for moment in heads]
    best: tuple[Moment, list[Part]] = (Moment(), [])
    for one in moments:
        best = one if one[0].total > best[0].total else best
    yield from best[1]


def _layer(kind: LayerKind, cost: LayerCost, plan: Plan, traits: MemoryTraits, run: Run) -> Iterator[Part]:
    moment = cost.moment
    unit = plan.recompute_layers if plan.full_recompute else 1
    if moment.activations:
        yield _of_tokens("activations_recomputed", plan, moment.activations / unit, layers=unit)
    adapters = run.adapters if run.trained.language else None
    copies = element_bytes(traits) / 2 * expert_copies(kind, plan, adapters)
    if copies and moment.workspace == copies:
        yield _of_tokens("workspace_experts", plan, copies)
        return
    weight: Number = 0.0
    if run.weights_trained and not traits.cached_weight_gradients:
        elements = largest_weight(kind, plan)
        weight = element_bytes(traits) * elements
        yield part("workspace_weight_gradient", bytes_each=element_bytes(traits), elements=elements)
    name = "workspace_ffn" if plan.flash_attention else "workspace_attention"
    yield _of_tokens(name, plan, moment.workspace - weight)


def _head(layers: ModelLayers, moment: Moment, plan: Plan, traits: MemoryTraits) -> Iterator[Part]:
    hidden = layers.output.hidden
    vocabulary = layers.embedding // hidden
    yield _of_tokens("activations_output", plan, moment.activations)
    yield logits_part(moment.logits, plan.tokens, vocabulary, plan.tensor)
    if not moment.workspace:
        return
    gathered = 2 * element_bytes(traits) * hidden * plan.tokens if plan.sequence_parallel else 0.0
    if gathered:
        yield _of_tokens("workspace_gathered_input", plan, gathered)
    weight = moment.workspace - gathered
    each = element_bytes(traits)
    yield part("workspace_output_gradient", bytes_each=each, elements=weight / each)


def _of_tokens(name: str, plan: Plan, bytes_on_rank: Number, **more: Number) -> Part:
    """A part that grows with the tokens of a micro-batch."""
    return part(name, **more, tokens=plan.tokens, bytes_per_token=bytes_on_rank / plan.tokens)
