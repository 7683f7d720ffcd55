"""What each moment of a step needs on a rank of a Hugging Face engine, in bytes; hugging_face.py takes the peak."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from backend.estimate.array_ops import Number, choose, larger, largest, plain
from backend.estimate.memory.layer_work import (
    SCORE_SAVED,
    layer_gradient_bytes,
    layer_works,
    new_gradient_bytes,
    scores,
)
from backend.estimate.memory.rollout import rollout_moment
from backend.estimate.memory.saved_activations import EagerForm, eager_bytes
from backend.estimate.memory.sharding import States
from backend.estimate.memory.stage import RankParameters
from backend.estimate.memory.terms import Moment, Term
from backend.estimate.memory.tuning import Tuning, form_of
from backend.estimate.model.layers import LayerKind, ModelLayers, counted_kinds, last_kinds
from backend.estimate.plan import Plan
from backend.job.traits import MemoryTraits


class Piece(NamedTuple):
    """Bytes that are there at some moments, and the terms that explain them."""

    bytes: Number
    terms: Callable[[], Sequence[Term]]


def step_moments(
    layers: ModelLayers,
    plan: Plan,
    memory: MemoryTraits,
    tuning: Tuning,
    parameters: RankParameters,
    states: States,
) -> list[Moment]:
    """Return the moments of a step, in their order."""
    form = form_of(tuning, memory, tuning.trained.language)
    saved, recomputed, kept_inputs = _layer_activations(layers, plan, memory, tuning, form)
    tower, tower_recomputed = _tower(layers, plan, memory, tuning)
    output = _piece("activations_output", plan.tokens * eager_bytes(layers.output, form))
    copies, kept_copies = _cast_copies(layers, plan, memory, tuning, parameters)
    head = _output_gradient(layers, memory, tuning, form)
    waiting = _waiting_gradient(layers, plan, memory, tuning, form)
    work = _layer_work(layers, plan, memory, tuning, form)
    gathered = _piece("workspace_gathered", states.gathered, "elements", 2)
    forward, backward, gradient = _logits(layers, plan, memory, tuning, form)
    held = held_gradients(plan, memory, parameters, states, form)
    after = larger(states.gradients, held)
    moments = [
        # the loss, forward and backward
        _moment(held, (saved, output, tower), (copies, gathered), forward),
        _moment(held, (saved, output, tower), (kept_copies, gathered), backward),
        # the backward passes of the output layer, of a decoder layer, of the first one and of the vision tower
        _moment(held, (saved, output, tower), (kept_copies, head, gathered), gradient),
        _moment(held, (saved, recomputed, tower), (kept_copies, waiting, work, gathered)),
        _moment(after, (kept_inputs, recomputed, tower), (waiting, work, gathered)),
        _moment(after, (tower, tower_recomputed), (waiting, gathered)),
        # the optimizer step
        _moment(states.gradients, (), (_piece("workspace_step", states.step, "elements", memory.step_gradient_bytes),)),
    ]
    if tuning.rollout is not None:
        (cast,) = copies.terms()
        moments.append(rollout_moment(layers, plan, memory, parameters, states, cast, tuning.rollout))
    return moments


def _piece(
    name: str, size: Number, unit: Literal["tokens", "patches", "elements"] = "tokens", each: Number = 0
) -> Piece:
    return Piece(size, lambda: [Term(name, size, unit, each)])


def _moment(
    gradients: Number, activations: Sequence[Piece], workspace: Sequence[Piece], logits: Number = 0.0
) -> Moment:
    return Moment(
        gradients=gradients,
        activations=_total(activations),
        logits=logits,
        workspace=_total(workspace),
        terms=lambda: tuple(term for piece in (*activations, *workspace) for term in piece.terms()),
    )


def _total(pieces: Sequence[Piece]) -> Number:
    total: Number = 0.0
    for piece in pieces:
        total = total + piece.bytes
    return total


def held_gradients(
    plan: Plan, memory: MemoryTraits, parameters: RankParameters, states: States, form: EagerForm
) -> Number:
    """Return the gradients of earlier micro-batches while another micro-batch runs."""
    unsharded = form.element * (parameters.trained_dense + parameters.trained_expert)
    between_steps = states.gradients if memory.keeps_gradients else 0
    return choose(plan.micro_batches > 1, unsharded if memory.accumulates_whole else states.gradients, between_steps)


def _output_gradient(layers: ModelLayers, memory: MemoryTraits, tuning: Tuning, form: EagerForm) -> Piece:
    """Return the new gradient of the output layer."""
    new = new_gradient_bytes(memory, form)
    size = new * layers.embedding if tuning.trains_output or tuning.copies_output else 0
    return _piece("workspace_output_gradient", size, "elements", new)


def _waiting_gradient(layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, form: EagerForm) -> Piece:
    """Return the gradient of the output layer that waits for the gradient of the embedding, under FSDP.

    FSDP reduces its outermost unit last. While micro-batches accumulate, this gradient is one of the whole gradients.
    """
    size: Number = 0
    if memory.reduces_layers and tuning.trains_output:
        whole = form.element * layers.embedding
        size = choose(plan.micro_batches > 1, 0 if memory.accumulates_whole else whole, whole)
    return _piece("workspace_output_gradient", size, "elements", form.element)


def _cast_copies(
    layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, parameters: RankParameters
) -> tuple[Piece, Piece]:
    """Return the 16-bit copies of fp32 weights: those that autocast caches until the end of forward, and those kept for
    backward.

    With checkpointing no copy is saved. Experts are slices of one parameter and are never cached.
    """
    copies: Number = 0
    kept: Number = 0
    if not tuning.adapters:
        # The lookup of an embedding is in fp32; a tied embedding is cast for the output layer.
        looked_up = layers.embedding if tuning.trains_output and not layers.tied else 0
        dense = memory.autocast_bytes * (parameters.trained_dense - looked_up)
        every = dense + memory.autocast_bytes * parameters.trained_expert
        copies, kept = choose(plan.full_recompute, dense, every), choose(plan.full_recompute, 0, every)
    name, element = "workspace_copies", memory.autocast_bytes
    return _piece(name, copies, "elements", element), _piece(name, kept, "elements", element)


def _logits(
    layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, form: EagerForm
) -> tuple[Number, Number, Number]:
    """Return the bytes of logits in the loss forward, in the loss backward, and in the backward pass of the output
    layer."""
    hidden = layers.output.hidden
    if tuning.liger:
        # The fp32 logits of a chunk of tokens are about as large as the hidden states.
        chunk = 4 * plan.tokens * hidden
        return chunk, chunk, chunk
    logits = tuning.logits_share * plan.tokens * (layers.embedding // hidden)
    # The 16-bit copy of an fp32 output layer is kept for the gradient of its input.
    copy = form.element * layers.embedding if tuning.upcasts_rest else 0
    forward = memory.logits_forward_bytes
    if tuning.pairs:
        forward = memory.pairs_forward_bytes + (memory.pairs_kept_bytes if tuning.reference else 0)
    backward = memory.logits_backward_bytes * logits
    # A reward model's logits get no gradient.
    gradient = min(form.element, memory.logits_backward_bytes) * logits
    return forward * logits + copy, backward + copy, gradient + copy


def _layer_activations(
    layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, form: EagerForm
) -> tuple[Piece, Piece, Piece]:
    """Return what decoder layers save, what the largest of them recomputes, and what backward keeps of all layers."""
    saved: Number = 0.0
    live: Number = 0.0
    saved_layers = []
    # Checkpointing skips layers without trainable parameters: they save all that they need.
    checkpointed = plan.full_recompute & tuning.trained.language
    for kind, count in _saving_layers(layers, tuning):
        full = plan.tokens * (eager_bytes(kind, form) + SCORE_SAVED * scores(kind, plan, tuning))
        size = count * choose(checkpointed, form.residual * (kind.hidden + kind.inputs) * plan.tokens, full)
        saved = saved + size
        live = choose(checkpointed, largest(live, full), live)
        saved_layers.append((kind, count, size))
    # Backward keeps the input of every checkpointed layer, and its gradient.
    keeps_inputs = memory.keeps_inputs and tuning.adapters
    kept = choose(plan.full_recompute, 2 * saved, 0) if keeps_inputs else 0

    def saved_terms() -> list[Term]:
        return [
            Term("activations_inputs" if checkpointed else f"activations_{kind.name}", size, layers=count)
            for kind, count, size in saved_layers
        ]

    def kept_terms() -> list[Term]:
        return [Term("activations_kept", 2 * size, layers=count) for _, count, size in saved_layers if keeps_inputs]

    return Piece(saved, saved_terms), _piece("activations_recomputed", live), Piece(kept, kept_terms)


def _saving_layers(layers: ModelLayers, tuning: Tuning) -> tuple[tuple[LayerKind, int], ...]:
    """Return the kinds of layers that save something, with their counts; layers below the first trained one do not."""
    return last_kinds(layers, tuning.last_layers) if tuning.method == "partial" else counted_kinds(layers)


def _tower(layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning) -> tuple[Piece, Piece]:
    """Return what the vision tower saves, and what its largest block recomputes."""
    vision, trained = layers.vision, tuning.trained
    per_patch: Number = 0.0
    live: Number = 0.0
    if vision is not None and tuning.method != "partial":
        merged = vision.patches_per_token
        form = form_of(tuning, memory, part_trained=True)
        if "tower" in tuning.copied:
            form = form._replace(trained=True, adapters=False)
            trained = trained._replace(tower=True, merger=True)
        per_patch = eager_bytes(vision.merger, form) * trained.merger / merged
        per_patch += vision.deep_stack * eager_bytes(vision.deep_stack_merger, form) * trained.deep_stack / merged
        if trained.tower:
            block = eager_bytes(vision.block, form)
            kept = choose(plan.full_recompute, form.residual * vision.block.hidden, block)
            per_patch = per_patch + vision.depth * kept
            live = choose(plan.full_recompute, block, 0.0)
    return (
        _piece("activations_tower", plan.vision_patches * per_patch, "patches"),
        _piece("activations_tower_recomputed", plan.vision_patches * live, "patches"),
    )


def _layer_work(layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, form: EagerForm) -> Piece:
    """Return the work of the layer that needs most."""
    works = layer_works(layers, plan, memory, tuning, form)

    def terms() -> list[Term]:
        work = max(works, key=lambda work: plain(work.total))
        return work.terms(layer_gradient_bytes(plan, memory, form), form)

    return Piece(largest(*(work.total for work in works)), terms)
