"""Memory of a rank under LLaMA-Factory's Hugging Face path (DDP, DeepSpeed ZeRO, FSDP), term by term, in bytes.

Under DDP trainable parameters are fp32 and run under autocast (model/adapter.py); ZeRO and FSDP run 16-bit parameters.
Gradient checkpointing affects only layers with something to train (model/model_utils/checkpointing.py). sharding.py
computes the states that ranks divide. saved_activations.py has the saved tensors of the modules.
"""

from backend.estimate.array_ops import Flag, Number, choose, larger, largest, plain
from backend.estimate.memory.layer_work import layer_works, new_gradient_bytes
from backend.estimate.memory.saved_activations import EagerForm, eager_bytes
from backend.estimate.memory.sharding import States, sharded_states
from backend.estimate.memory.stage import RankParameters
from backend.estimate.memory.terms import LIBRARIES, STATIC_BYTES, Moment, StageMemory, Term, Terms, peak_moment
from backend.estimate.memory.tuning import Tuning, form_of
from backend.estimate.model.adapters import NF4_BYTES, adapter_parameters, quantised_parameters, routed_parameters
from backend.estimate.model.layers import LayerKind, ModelLayers, counted_kinds, last_kinds
from backend.estimate.model.parameters import layer_counts, model_parameters, vision_parameters
from backend.estimate.plan import Plan
from backend.job.traits import MemoryTraits


def data_parallel_memory(layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning) -> StageMemory:
    """Return the memory of one rank; `memory` is in the precision of the run."""
    parameters = _parameters(layers, tuning)
    states = model_states(layers, plan, memory, tuning, parameters)
    reference, reference_host = reference_bytes(plan, memory, tuning, parameters)
    peak = peak_moment(_step_moments(layers, plan, memory, tuning, parameters, states))
    return StageMemory(
        stage=0,
        layers=layers.count,
        parameters=parameters,
        weights=states.weights + reference,
        gradients=states.buckets + states.reduce + peak.gradients,
        optimizer=states.optimizer,
        activations=peak.activations,
        logits=peak.logits,
        workspace=peak.workspace + STATIC_BYTES,
        host=states.host + reference_host,
        moment=peak,
        terms=(LIBRARIES,),
    )


def model_states(
    layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, parameters: RankParameters
) -> States:
    """Return the model states of one rank."""
    frozen = _frozen_bytes(layers, memory, tuning, parameters)
    return sharded_states(layers, plan, memory, parameters, frozen, packed_elements(layers, tuning))


def reference_bytes(
    plan: Plan, memory: MemoryTraits, tuning: Tuning, parameters: RankParameters
) -> tuple[Number, Number]:
    """Return the bytes of a reference model on the GPU and on the host. It is a 16-bit copy; runs with adapters
    switch them off and need no copy.

    LLaMA-Factory's train/trainer_utils.py create_ref_model, and train/dpo/trainer.py and train/kto/trainer.py,
    which shard it too.
    """
    if not tuning.reference or tuning.adapters:
        return 0.0, 0.0
    copy = memory.frozen_bytes * (parameters.dense + parameters.expert)
    if memory.shards == "parameters":
        copy = copy / plan.data
        return (0.0, copy) if memory.offloads == "everything" else (copy, 0.0)
    return copy, 0.0


def _parameters(layers: ModelLayers, tuning: Tuning) -> RankParameters:
    expert = routed_parameters(layers)
    total = model_parameters(layers)
    trained, trained_expert = 0, 0
    if tuning.adapters:
        trained = adapter_parameters(layers, tuning.lora_rank, tuning.lora_targets, tuning.trained)
        total += trained
    elif tuning.method == "partial":
        for kind, count in last_kinds(layers, tuning.last_layers):
            trained += count * (layer_counts(kind).total - layer_counts(kind).expert)
            trained_expert += count * layer_counts(kind).expert
    else:
        vision = vision_parameters(layers.vision) if layers.vision else (0, 0, 0)
        flags = (tuning.trained.tower, tuning.trained.merger, tuning.trained.deep_stack)
        trained = sum(part for part, flag in zip(vision, flags, strict=True) if flag)
        if tuning.trained.language:
            trained += total - expert - sum(vision)
            trained_expert = expert
    return RankParameters(dense=total - expert, expert=expert, trained_dense=trained, trained_expert=trained_expert)


def _frozen_bytes(layers: ModelLayers, memory: MemoryTraits, tuning: Tuning, parameters: RankParameters) -> Number:
    frozen = parameters.dense + parameters.expert - parameters.trained_dense - parameters.trained_expert
    element = 4 if tuning.single_precision or tuning.upcasts_rest else memory.frozen_bytes
    packed = packed_elements(layers, tuning)
    return NF4_BYTES * packed + element * (frozen - packed)


def packed_elements(layers: ModelLayers, tuning: Tuning) -> int:
    """Return the number of weights in 4 bits."""
    if tuning.method != "qlora":
        return 0
    return quantised_parameters(layers) + (routed_parameters(layers) if tuning.packs_experts else 0)


def _step_moments(
    layers: ModelLayers,
    plan: Plan,
    memory: MemoryTraits,
    tuning: Tuning,
    parameters: RankParameters,
    states: States,
) -> list[Moment]:
    """Return what each moment needs: the loss forward and backward, the backward passes of the output layer, of a
    decoder layer, of the first decoder layer and of the vision tower, and the optimizer step."""
    form = form_of(tuning, memory, tuning.trained.language)
    saved, live, saved_layers = _layer_activations(layers, plan, tuning, form)
    tower_saved, tower_live = _tower(layers, plan, memory, tuning, plan.full_recompute)
    output = plan.tokens * eager_bytes(layers.output, form)
    everything = saved + tower_saved + output
    gradients = states.gradients
    earlier_gradients = held_gradients(plan, memory, parameters, states, form)
    copies, kept_copies = _cast_copies(layers, plan, memory, tuning, parameters)
    forward_logits, backward_logits, gradient_logits = _logits(layers, plan, memory, tuning, form)
    new = new_gradient_bytes(memory, form)
    head = new * layers.embedding if tuning.trains_output else 0
    waiting = _waiting_gradient(layers, plan, memory, tuning, form)
    works = layer_works(layers, plan, memory, tuning, form)
    work = waiting + largest(*(work.total for work in works))
    after = larger(gradients, earlier_gradients)
    # Backward keeps the input of every checkpointed layer, and its gradient.
    keeps_inputs = memory.keeps_inputs and tuning.adapters
    inputs = choose(plan.full_recompute, 2 * saved, 0) if keeps_inputs else 0
    gathered = states.gathered

    def terms(*names: str) -> Terms:
        """Return the terms of these names, in the order of the page."""
        largest_work = max(works, key=lambda work: plain(work.total))
        checkpointed = plan.full_recompute and tuning.trained.language
        every = {
            "saved": [
                Term("activations_inputs" if checkpointed else f"activations_{kind.name}", size, layers=count)
                for kind, count, size in saved_layers
            ],
            "kept": [
                Term("activations_kept", 2 * size, layers=count) for _, count, size in saved_layers if keeps_inputs
            ],
            "output": [Term("activations_output", output)],
            "live": [Term("activations_recomputed", live)],
            "tower": [Term("activations_tower", tower_saved, "patches")],
            "tower_live": [Term("activations_tower_recomputed", tower_live, "patches")],
            "copies": [Term("workspace_copies", copies, "elements", memory.autocast_bytes)],
            "kept_copies": [Term("workspace_copies", kept_copies, "elements", memory.autocast_bytes)],
            "head": [Term("workspace_output_gradient", head, "elements", new)],
            "waiting": [Term("workspace_output_gradient", waiting, "elements", form.element)],
            "work": largest_work.terms(new, form),
            "gathered": [Term("workspace_gathered", gathered, "elements", 2)],
            "step": [Term("workspace_step", states.step, "elements", memory.step_gradient_bytes)],
        }
        return tuple(term for name in names for term in every[name])

    return [
        Moment(
            gradients=earlier_gradients,
            activations=everything,
            logits=forward_logits,
            workspace=copies + gathered,
            terms=lambda: terms("saved", "output", "tower", "copies", "gathered"),
        ),
        Moment(
            gradients=earlier_gradients,
            activations=everything,
            logits=backward_logits,
            workspace=kept_copies + gathered,
            terms=lambda: terms("saved", "output", "tower", "kept_copies", "gathered"),
        ),
        Moment(
            gradients=earlier_gradients,
            activations=everything,
            logits=gradient_logits,
            workspace=head + (kept_copies + gathered),
            terms=lambda: terms("saved", "output", "tower", "kept_copies", "head", "gathered"),
        ),
        Moment(
            gradients=earlier_gradients,
            activations=saved + tower_saved + live,
            workspace=work + (kept_copies + gathered),
            terms=lambda: terms("saved", "live", "tower", "kept_copies", "waiting", "work", "gathered"),
        ),
        Moment(
            gradients=after,
            activations=tower_saved + live + inputs,
            workspace=work + gathered,
            terms=lambda: terms("kept", "live", "tower", "waiting", "work", "gathered"),
        ),
        Moment(
            gradients=after,
            activations=tower_saved + tower_live,
            workspace=waiting + gathered,
            terms=lambda: terms("tower", "tower_live", "waiting", "gathered"),
        ),
        Moment(gradients=gradients, workspace=states.step, terms=lambda: terms("step")),
    ]


def held_gradients(
    plan: Plan, memory: MemoryTraits, parameters: RankParameters, states: States, form: EagerForm
) -> Number:
    """Return the gradients of earlier micro-batches while another micro-batch runs."""
    unsharded = form.element * (parameters.trained_dense + parameters.trained_expert)
    between_steps = states.gradients if memory.keeps_gradients else 0
    return choose(plan.micro_batches > 1, unsharded if memory.accumulates_whole else states.gradients, between_steps)


def _waiting_gradient(layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, form: EagerForm) -> Number:
    """Return the gradient of the output layer that waits for the gradient of the embedding, under FSDP.

    FSDP reduces its outermost unit last. While micro-batches accumulate, this gradient is one of the whole gradients.
    """
    if not (memory.reduces_layers and tuning.trains_output):
        return 0
    whole = memory.accumulates_whole
    return choose(
        plan.micro_batches > 1, 0 if whole else form.element * layers.embedding, form.element * layers.embedding
    )


def _cast_copies(
    layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, parameters: RankParameters
) -> tuple[Number, Number]:
    """Return the 16-bit copies of fp32 weights: those that autocast caches until the end of forward, and those kept for
    backward.

    With checkpointing no copy is saved. Experts are slices of one parameter and are never cached.
    """
    if tuning.adapters:
        return 0, 0
    # The lookup of an embedding is in fp32; a tied embedding is cast for the output layer.
    looked_up = layers.embedding if tuning.trains_output and not layers.tied else 0
    dense = memory.autocast_bytes * (parameters.trained_dense - looked_up)
    every = dense + memory.autocast_bytes * parameters.trained_expert
    return choose(plan.full_recompute, dense, every), choose(plan.full_recompute, 0, every)


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
    logits = plan.tokens * (layers.embedding // hidden)
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
    layers: ModelLayers, plan: Plan, tuning: Tuning, form: EagerForm
) -> tuple[Number, Number, list[tuple[LayerKind, int, Number]]]:
    """Return the bytes that decoder layers save, the bytes that the largest of them recomputes, and the saved bytes of
    the layers of each kind, with their count."""
    saved: Number = 0.0
    live: Number = 0.0
    saved_layers = []
    # Checkpointing skips layers without trainable parameters: they save all that they need.
    checkpointed = plan.full_recompute & tuning.trained.language
    for kind, count in _saving_layers(layers, tuning):
        full = plan.tokens * eager_bytes(kind, form)
        size = count * choose(checkpointed, form.residual * (kind.hidden + kind.inputs) * plan.tokens, full)
        saved = saved + size
        live = choose(checkpointed, largest(live, full), live)
        saved_layers.append((kind, count, size))
    return saved, live, saved_layers


def _saving_layers(layers: ModelLayers, tuning: Tuning) -> tuple[tuple[LayerKind, int], ...]:
    """Return the kinds of layers that save something, with their counts; layers below the first trained one do not."""
    return last_kinds(layers, tuning.last_layers) if tuning.method == "partial" else counted_kinds(layers)


def _tower(
    layers: ModelLayers, plan: Plan, memory: MemoryTraits, tuning: Tuning, checkpointed: Flag
) -> tuple[Number, Number]:
    vision, trained = layers.vision, tuning.trained
    if vision is None or tuning.method == "partial":
        return 0.0, 0.0
    merged = vision.patches_per_token
    form = form_of(tuning, memory, part_trained=True)
    per_patch: Number = eager_bytes(vision.merger, form) * trained.merger / merged
    per_patch += vision.deep_stack * eager_bytes(vision.deep_stack_merger, form) * trained.deep_stack / merged
    live: Number = 0.0
    if trained.tower:
        block = eager_bytes(vision.block, form)
        per_patch = per_patch + vision.depth * choose(checkpointed, form.residual * vision.block.hidden, block)
        live = choose(checkpointed, block, 0.0)
    return plan.vision_patches * per_patch, plan.vision_patches * live
