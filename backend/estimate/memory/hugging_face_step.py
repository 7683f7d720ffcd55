"""What each moment of a step needs on a rank of a Hugging Face engine, in bytes; hugging_face.py takes the peak."""

from backend.estimate.array_ops import Number, choose, larger, smaller
from backend.estimate.memory.attention_scores import mask_bytes, needed_masks, repeated_keys, saved_scores, tower_scores
from backend.estimate.memory.cross_attention import cross_attention_bytes, image_vector_bytes
from backend.estimate.memory.eager_activations import EagerForm, eager_bytes
from backend.estimate.memory.layer_work import layer_work, new_gradient_bytes
from backend.estimate.memory.memory_term import (
    NOTHING,
    Piece,
    chosen_piece,
    joined,
    largest_piece,
    piece,
    token_piece,
    trained_piece,
)
from backend.estimate.memory.rollout import rollout_moment
from backend.estimate.memory.sharding import States
from backend.estimate.memory.stage import RankParameters
from backend.estimate.memory.terms import Moment, moment
from backend.estimate.memory.tuning import Tuning, form_of
from backend.estimate.model.adapters import quantised_parameters
from backend.estimate.model.layers import LayerKind, ModelLayers, counted_kinds, last_kinds, operators_of, table_weights
from backend.estimate.plan import Plan
from backend.job.memory_traits import MemoryTraits
from backend.job.model.operators import AltUp

UNREDUCED = 4
"""The first moments of a step, when no gradient of its last micro-batch has been reduced."""


def step_moments(
    layers: ModelLayers,
    plan: Plan,
    memory: MemoryTraits,
    tuning: Tuning,
    parameters: RankParameters,
    states: States,
) -> list[Moment]:
    """Return the moments of a step, in their order."""
    form = _form(layers, memory, tuning)
    saved, recomputed, kept_inputs = _layer_activations(layers, plan, memory, tuning, form)
    tower, tower_recomputed = _tower(layers, plan, memory, tuning)
    if layers.stem:
        tower = joined(tower, _stem(layers.stem, plan, tuning, form))
    output = token_piece("activations_output", plan.tokens * eager_bytes(layers.output, form), plan)
    copies, kept_copies = _cast_copies(layers, plan, memory, tuning, form, parameters)
    head_copy = _head_copy(layers, plan, memory, tuning)
    head = _output_gradient(layers, memory, tuning, form)
    waiting = _waiting_gradient(layers, plan, memory, tuning, form)
    table = _table_gradient(layers, plan, memory, tuning, form)
    work = largest_piece(*[layer_work(kind, layers, plan, memory, tuning, form) for kind in layers.kinds])
    gathered = piece("workspace_gathered", states.gathered, bytes_each=2, elements=None)
    stepping = piece("workspace_step", states.step, bytes_each=memory.step_gradient_bytes, elements=None)
    forward, backward, gradient = _logits(layers, plan, memory, tuning, form)
    summing, summed = _liger_gradient(layers, memory, tuning, form)
    held = _held_gradients(plan, memory, parameters, states, form)
    after = largest_piece(states.gradients, held)
    saving = (joined(saved, output, tower),)
    moments = [
        # the loss, forward and backward
        moment(held, saving, forward, (copies, summing, gathered)),
        moment(held, saving, backward, (kept_copies, head_copy, summed, gathered)),
        # the backward passes of the output layer, of a decoder layer, of the first one and of the vision tower
        moment(held, saving, gradient, (kept_copies, head_copy, head, gathered)),
        moment(held, (saved, recomputed, tower), NOTHING, (kept_copies, waiting, work, gathered)),
        moment(after, (kept_inputs, recomputed, tower), NOTHING, (waiting, work, gathered)),
        moment(after, (tower, tower_recomputed), NOTHING, (waiting, table, gathered)),
        moment(states.gradients, workspace=(stepping,)),  # the optimizer step
    ]
    if tuning.rollout is not None:
        moments.append(rollout_moment(layers, plan, memory, parameters, states, copies, tuning.rollout))
    return moments


def _form(layers: ModelLayers, memory: MemoryTraits, tuning: Tuning) -> EagerForm:
    """Return how the modules of the decoder run. Autocast on CUDA computes powers in fp32, and AltUp scales the copies
    of the hidden state by powers of their elements, so that all copies are in fp32. ZAYA keeps its residual
    stream in fp32."""
    form = form_of(tuning, memory, tuning.trained.language)
    if tuning.fused_norms or tuning.fused_functions:
        form = form._replace(
            fused_norms=tuning.fused_norms,
            fused_head_norms=tuning.fused_head_norms,
            fused_functions=tuning.fused_functions,
        )
    if layers.fp32_residual or (memory.autocast_bytes and layers.stem and operators_of(layers.stem, AltUp)):
        return form._replace(residual=4)
    return form


def _stem(stem: LayerKind, plan: Plan, tuning: Tuning, form: EagerForm) -> Piece:
    """Return what the work before the layers saves. Nothing before the first adapter needs a gradient, unless
    checkpoints make the embedding's output need one (transformers' enable_input_require_grads)."""
    saved = plan.tokens * eager_bytes(stem, form)
    if tuning.adapters:
        saved = choose(plan.full_recompute, saved, 0.0)
    return token_piece("activations_stem", saved, plan)


def _held_gradients(
    plan: Plan, memory: MemoryTraits, parameters: RankParameters, states: States, form: EagerForm
) -> Piece:
    """Return the gradients of earlier micro-batches while another micro-batch runs."""
    count = parameters.trained_dense + parameters.trained_expert
    accumulated = states.gradients
    if memory.accumulates_whole:
        accumulated = trained_piece("gradients", form.element, count, parameters)
    between_steps = states.gradients if memory.keeps_gradients else NOTHING
    return chosen_piece(plan.micro_batches > 1, accumulated, between_steps)


def _output_gradient(layers: ModelLayers, memory: MemoryTraits, tuning: Tuning, form: EagerForm) -> Piece:
    """Return the new gradient of the output layer."""
    if tuning.liger:
        return _liger_gradient(layers, memory, tuning, form)[1]
    new = new_gradient_bytes(memory, form)
    size = new * layers.embedding if tuning.trains_output or tuning.copies_output else 0
    return piece("workspace_output_gradient", size, bytes_each=new, elements=None)


def _liger_gradient(layers: ModelLayers, memory: MemoryTraits, tuning: Tuning, form: EagerForm) -> tuple[Piece, Piece]:
    """Return the gradient of a trained output layer that Liger's loss makes in forward, while it is summed over chunks
    of tokens and afterwards.

    It has the precision of the weight. Each chunk adds a product: an fp32 sum takes it directly, a 16-bit sum takes it
    in 16 bits and then in fp32 (Liger 0.8.2 ops/fused_linear_cross_entropy.py; read, not measured).
    """
    if not tuning.liger or not (tuning.trains_output or tuning.copies_output):
        return NOTHING, NOTHING
    summed = 4 if memory.autocast_bytes or form.element == 4 else 2
    summing = summed if summed == 4 else summed + 2 + 4
    during, after = [
        piece("workspace_output_gradient", size * layers.embedding, bytes_each=size, elements=None)
        for size in (summing, summed)
    ]
    return during, after


def _waiting_gradient(layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, form: EagerForm) -> Piece:
    """Return the gradient of the output layer that waits for the gradient of the embedding, under FSDP.

    FSDP reduces its outermost unit last. While micro-batches accumulate, this gradient is one of the whole gradients.
    """
    if not memory.reduces_layers or not tuning.trains_output:
        return NOTHING
    whole = form.element * layers.embedding
    size = choose(plan.micro_batches > 1, 0 if memory.accumulates_whole else whole, whole)
    return piece("workspace_output_gradient", size, bytes_each=form.element, elements=None)


def _table_gradient(layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, form: EagerForm) -> Piece:
    """Return the new gradient of tables that are looked up beside the embedding, such as those of the layers' own
    embeddings (Gemma 3n), which have more weights than all layers. The first gradient is itself the accumulated one
    where gradients stay whole."""
    size: Number = 0
    if tuning.trains_output:
        new = form.residual * layers.positions
        size = new if memory.shards in ("gradients", "parameters") else choose(plan.micro_batches > 1, new, 0)
    return piece("workspace_table_gradient", size, bytes_each=form.residual, elements=None)


def _cast_copies(
    layers: ModelLayers,
    plan: Plan,
    memory: MemoryTraits,
    tuning: Tuning,
    form: EagerForm,
    parameters: RankParameters,
) -> tuple[Piece, Piece]:
    """Return the 16-bit copies of fp32 weights: those that autocast caches until the end of forward, and those kept for
    backward.

    With checkpointing no copy is saved. Experts are slices of one parameter and are never cached.
    """
    if tuning.casts_frozen:
        # Autocast caches no frozen weight, but the backward pass of each projection needs its copy
        # (pytorch aten/src/ATen/autocast_mode.cpp cached_cast). _logits has that of the output layer.
        size = choose(plan.full_recompute, 0.0, form.element * quantised_parameters(layers))
        frozen = piece("workspace_copies", size, bytes_each=form.element, elements=None)
        return frozen, frozen
    if tuning.adapters or not memory.autocast_bytes:
        return NOTHING, NOTHING
    # The lookup of an embedding is in fp32; a tied embedding is cast for the output layer.
    looked_up = layers.positions + (0 if layers.tied else layers.embedding) if tuning.trains_output else 0
    looked_up += sum(count * table_weights(kind) for kind, count in _saving_layers(layers, tuning))
    dense = memory.autocast_bytes * (parameters.trained_dense - looked_up)
    every = dense + memory.autocast_bytes * parameters.trained_expert
    copies, kept = choose(plan.full_recompute, dense, every), choose(plan.full_recompute, 0, every)
    cached, saved = [
        piece("workspace_copies", size, bytes_each=memory.autocast_bytes, elements=None) for size in (copies, kept)
    ]
    return cached, saved


def _head_copy(layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning) -> Piece:
    """Return the 16-bit copy of the output layer's fp32 weight, which its backward pass needs. No checkpoint holds this
    layer; without checkpoints _cast_copies has the copy."""
    size = memory.autocast_bytes * layers.embedding if tuning.trains_output else 0.0
    return piece(
        "workspace_copies", choose(plan.full_recompute, size, 0.0), bytes_each=memory.autocast_bytes, elements=None
    )


def _logits(
    layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, form: EagerForm
) -> tuple[Piece, Piece, Piece]:
    """Return the bytes of logits in the loss forward, in the loss backward, and in the backward pass of the output
    layer."""
    hidden = layers.output.hidden
    if tuning.liger:
        # The 16-bit logits of a chunk of tokens are up to twice as large as all hidden states, which get a gradient.
        tokens = plan.tokens
        chunk = piece("logits_chunk", 6 * tokens * hidden, bytes_each=None, tokens=tokens, hidden=hidden)
        return chunk, chunk, chunk
    tokens, vocabulary = plan.tokens, layers.embedding // hidden
    logits = tuning.logits_share * tokens * vocabulary
    # Autocast's 16-bit copy of an fp32 output layer is kept for the gradient of its input.
    copy = form.element * layers.embedding if tuning.upcasts_rest and not tuning.single_precision else 0
    forward = memory.logits_forward_bytes
    if tuning.pairs:
        forward = memory.pairs_forward_bytes + (memory.pairs_kept_bytes if tuning.reference else 0)
    backward = memory.logits_backward_bytes * logits
    # A reward model's logits get no gradient.
    gradient = smaller(form.element, memory.logits_backward_bytes) * logits
    # tanh saves its output (transformers 5.6.0 modeling_gemma2.py, final_logit_softcapping).
    bounded = form.element * logits if layers.softcap else 0
    first, second, third = [
        piece("logits", size + copy + bounded, bytes_each=None, tokens=tokens, vocabulary=vocabulary)
        for size in (forward * logits, backward, gradient)
    ]
    return first, second, third


def _layer_activations(
    layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, form: EagerForm
) -> tuple[Piece, Piece, Piece]:
    """Return what decoder layers save, what the largest of them recomputes, and what backward keeps of all layers."""
    saved, kept = [], []
    live: Number = 0.0
    # Checkpointing skips layers without trainable parameters: they save all that they need.
    checkpointed = plan.full_recompute & tuning.trained.language
    for kind, count in _saving_layers(layers, tuning):
        square = saved_scores(kind, plan, memory, tuning) + mask_bytes(kind, plan, form)
        square = square + repeated_keys(kind, plan, tuning, form) + needed_masks(kind, plan, tuning, form)
        full = plan.tokens * (eager_bytes(kind, form) + square)
        if kind.of_images:
            full = full + cross_attention_bytes(kind.of_images, plan, form)
        inputs = form.residual * (kind.hidden + kind.inputs) * plan.tokens
        name = "activations_inputs" if checkpointed is True else f"activations_{kind.name}"
        part = token_piece(name, choose(checkpointed, count * inputs, count * full), plan, layers=count)
        live = choose(checkpointed, larger(live, full), live)
        saved.append(part)
        if memory.keeps_inputs and tuning.adapters:
            # Backward keeps the input of every checkpointed layer, and its gradient.
            kept.append(token_piece("activations_kept", 2 * part.bytes, plan, layers=count))
    return (
        joined(*saved),
        token_piece("activations_recomputed", live, plan),
        chosen_piece(plan.full_recompute, joined(*kept), NOTHING) if kept else NOTHING,
    )


def _saving_layers(layers: ModelLayers, tuning: Tuning) -> tuple[tuple[LayerKind, int], ...]:
    """Return the kinds of layers that save something, with their counts; layers below the first trained one do not."""
    return last_kinds(layers, tuning.last_layers) if tuning.method == "partial" else counted_kinds(layers)


def _tower(layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning) -> tuple[Piece, Piece]:
    """Return what the vision tower saves, and what its largest block recomputes."""
    vision, trained = layers.vision, tuning.trained
    if vision is None or tuning.method == "partial":
        return NOTHING, NOTHING
    merged = vision.patches_per_token
    form = form_of(tuning, memory, part_trained=True)
    if "tower" in tuning.copied:
        form = form._replace(trained=True, adapters=False)
        trained = trained._replace(tower=True, merger=True)
    per_patch: Number = eager_bytes(vision.merger, form) * trained.merger / merged
    per_patch += vision.deep_stack * eager_bytes(vision.deep_stack_merger, form) * trained.deep_stack / merged
    live: Number = 0.0
    seen = plan.patches_seen(joins_images=vision.joins_images)
    for part in vision.merger_layers if trained.merger else ():
        whole = eager_bytes(part.kind, form) / part.joined
        inputs = form.residual * (part.kind.hidden + part.kind.inputs) / part.joined
        per_patch = per_patch + part.count * choose(plan.full_recompute, inputs - whole, 0.0)
        live = larger(live, choose(plan.full_recompute, whole, 0.0))
    if trained.tower:
        per_patch = per_patch + form.element * vision.kept
        for part in vision.blocks:
            saved_by_one = (eager_bytes(part.kind, form) + tower_scores(part, seen, plan)) / part.joined
            is_checkpointed = plan.full_recompute & part.checkpointed
            kept = choose(is_checkpointed, form.residual * part.kind.hidden / part.joined, saved_by_one)
            per_patch = per_patch + part.count * kept
            live = larger(live, choose(is_checkpointed, saved_by_one, 0.0))
    elif vision.patches_need and tuning.method == "lora":
        form = form._replace(trained=False, adapters=False)
        each = [eager_bytes(part.kind, form) + tower_scores(part, seen, plan) for part in vision.blocks]
        frozen = sum(part.count * size / part.joined for part, size in zip(vision.blocks, each, strict=True))
        if not trained.merger:
            frozen = frozen + eager_bytes(vision.merger, form) / merged
        per_patch = per_patch + choose(plan.full_recompute, frozen, 0.0)
    patches = plan.vision_patches
    saved = patches * per_patch
    if plan.image_keys:
        saved = saved + image_vector_bytes(layers, plan, form_of(tuning, memory, trained.tower))
    return (
        piece("activations_tower", saved, patches=patches, bytes_per_patch=None),
        piece("activations_tower_recomputed", patches * live, patches=patches, bytes_per_patch=None),
    )
