"""The memory of a rank under a Hugging Face engine taken apart into products of named numbers."""

from collections.abc import Iterator

from backend.estimate.array_ops import Number
from backend.estimate.memory.hugging_face import (
    MOMENTS,
    Tuning,
    activation_bytes,
    cast_copies,
    form_of,
    frozen_bytes,
    held_gradients,
    kept_inputs,
    layer_works,
    packed_elements,
    passing_bytes,
    saving_layers,
    step_moments,
    waiting_gradient,
)
from backend.estimate.memory.memory_term import Part, logits_part, part, share
from backend.estimate.memory.saved_activations import Eager, eager_bytes
from backend.estimate.memory.sharding import reduce_bytes, shared_states
from backend.estimate.memory.stage import RankParameters
from backend.estimate.memory.terms import STATIC_BYTES, StageMemory
from backend.estimate.model.adapters import NF4_BYTES, SCALES_BYTES
from backend.estimate.model.layers import ModelLayers
from backend.estimate.plan import Plan
from backend.job.traits import MemoryTraits

_EVERYTHING = ("loss", "loss_backward", "output_backward")
"""Moments at which all that was saved is still there."""


def hugging_face_parts(
    layers: ModelLayers, plan: Plan, traits: MemoryTraits, tuning: Tuning, memory: StageMemory
) -> Iterator[Part]:
    """Every part of every term."""
    parameters = memory.parameters
    frozen = frozen_bytes(layers, traits, tuning, parameters)
    states = shared_states(layers, plan, traits, parameters, frozen, packed_elements(layers, tuning))
    moments = step_moments(layers, plan, traits, tuning, parameters, states)
    totals = [float(moment.total) for moment in moments]
    at = MOMENTS[totals.index(max(totals))]
    fullest = moments[MOMENTS.index(at)]
    form = form_of(tuning, traits, tuning.trained.language)
    yield from _weights(layers, plan, traits, tuning, parameters)
    whole = traits.reduces_layers and fullest.gradients == held_gradients(plan, traits, parameters, states, form)
    yield from _gradients(
        layers, plan, traits, parameters, form if whole else None, has_gradients=bool(fullest.gradients)
    )
    yield from _optimizer(plan, traits, parameters)
    yield from _activations(layers, plan, traits, tuning, form, at)
    if fullest.logits:
        yield _logits(layers, plan, tuning, float(fullest.logits))
    yield from _workspace(layers, plan, traits, tuning, form, at, parameters)
    if at == "step" and states.step:
        yield part(
            "workspace_step", bytes_each=traits.step_gradient_bytes, elements=states.step / traits.step_gradient_bytes
        )
    if at != "step" and states.gathered:
        yield part("workspace_gathered", bytes_each=2, elements=states.gathered / 2)
    yield part("workspace_libraries", bytes=STATIC_BYTES)


def _trained(parameters: RankParameters) -> Iterator[tuple[str, dict[str, Number]]]:
    yield "dense", {"dense_trained": parameters.trained_dense}
    yield "expert", {"expert_trained": parameters.trained_expert}


def _weights(
    layers: ModelLayers, plan: Plan, traits: MemoryTraits, tuning: Tuning, parameters: RankParameters
) -> Iterator[Part]:
    divided = share(plan.data if traits.shards == "parameters" else 1)
    every = parameters.dense + parameters.expert
    packed = packed_elements(layers, tuning)
    if packed:
        yield part("weights_scales", bytes_each=SCALES_BYTES, packed=packed)
    if traits.offloads != "everything":
        for kind, trained in _trained(parameters):
            yield part(f"weights_{kind}", bytes_each=traits.weight_bytes, **trained, **divided)
        each = 4 if tuning.single_precision else traits.frozen_bytes
        frozen = every - parameters.trained_dense - parameters.trained_expert
        yield part("weights_frozen", bytes_each=each, frozen=frozen - packed, **divided)
        yield part("weights_packed", bytes_each=NF4_BYTES - SCALES_BYTES, packed=packed, **divided)
    if tuning.reference and not tuning.adapters:
        sharded = traits.shards == "parameters"
        if not (sharded and traits.offloads == "everything"):
            copies = share(plan.data if sharded else 1)
            yield part("weights_reference", bytes_each=traits.frozen_bytes, parameters=every, **copies)


def _gradients(
    layers: ModelLayers,
    plan: Plan,
    traits: MemoryTraits,
    parameters: RankParameters,
    whole: Eager | None,
    *,
    has_gradients: bool,
) -> Iterator[Part]:
    """`whole`: in what form every rank keeps all of them."""
    count = parameters.trained_dense + parameters.trained_expert
    if has_gradients and whole:
        for kind, trained in _trained(parameters):
            yield part(f"gradients_{kind}", bytes_each=whole.element, **trained)
    elif has_gradients and traits.offloads == "none":
        divided = share(plan.data if traits.shards in ("gradients", "parameters") else 1)
        for kind, trained in _trained(parameters):
            yield part(f"gradients_{kind}", bytes_each=traits.gradient_bytes, **trained, **divided)
    if plan.data > 1:
        yield part("gradients_buckets", bytes_each=traits.bucket_bytes, trained=count)
    if count:
        yield part("gradients_reduce", bytes_each=2, elements=reduce_bytes(layers, traits, count) / 2)


def _optimizer(plan: Plan, traits: MemoryTraits, parameters: RankParameters) -> Iterator[Part]:
    if traits.offloads == "none":
        divided = share(plan.data if traits.shards != "none" else 1)
        for kind, trained in _trained(parameters):
            yield part(f"optimizer_{kind}", bytes_each=traits.optimizer_bytes, **trained, **divided)


def _activations(
    layers: ModelLayers, plan: Plan, traits: MemoryTraits, tuning: Tuning, form: Eager, at: str
) -> Iterator[Part]:
    _, live, tower_saved, tower_live = activation_bytes(layers, plan, traits, tuning, form)
    kept = float(kept_inputs(plan, traits, tuning, 1)) if at == "last_backward" else 0
    if at in (*_EVERYTHING, "layer_backward") or kept:
        for kind, count in saving_layers(layers, tuning):
            checkpointed = plan.full_recompute and tuning.trained.language
            each = form.residual * kind.hidden if checkpointed else eager_bytes(kind, form)
            name = "activations_inputs" if checkpointed else f"activations_{kind.name}"
            name = "activations_kept" if kept else name
            yield part(name, layers=count, tokens=plan.tokens, bytes_per_token=each * (kept or 1))
    if at in _EVERYTHING:
        yield part("activations_output", tokens=plan.tokens, bytes_per_token=eager_bytes(layers.output, form))
    if at in ("layer_backward", "last_backward"):
        yield part("activations_recomputed", tokens=plan.tokens, bytes_per_token=live / plan.tokens)
    if plan.vision_patches and at != "step":
        patches = plan.vision_patches
        yield part("activations_tower", patches=patches, bytes_per_patch=tower_saved / patches)
        if at == "tower_backward":
            yield part("activations_tower_recomputed", patches=patches, bytes_per_patch=tower_live / patches)


def _logits(layers: ModelLayers, plan: Plan, tuning: Tuning, bytes_on_rank: float) -> Part:
    hidden = layers.output.hidden
    if tuning.liger:
        return part(
            "logits_chunk", bytes_each=bytes_on_rank / (plan.tokens * hidden), tokens=plan.tokens, hidden=hidden
        )
    return logits_part(bytes_on_rank, plan.tokens, layers.embedding // hidden)


def _workspace(
    layers: ModelLayers,
    plan: Plan,
    traits: MemoryTraits,
    tuning: Tuning,
    form: Eager,
    at: str,
    parameters: RankParameters,
) -> Iterator[Part]:
    copies, kept_copies = cast_copies(layers, plan, traits, tuning, parameters)
    copied = {"loss": copies, "last_backward": 0, "tower_backward": 0, "step": 0}.get(at, kept_copies)
    if copied:
        yield part("workspace_copies", bytes_each=traits.autocast_bytes, elements=copied / traits.autocast_bytes)
    new = passing_bytes(traits) + form.element
    if at == "output_backward" and tuning.trains_output:
        yield part("workspace_output_gradient", bytes_each=new, elements=layers.embedding)
    waiting = waiting_gradient(layers, plan, traits, tuning, form)
    if waiting and at in ("layer_backward", "last_backward", "tower_backward"):
        yield part("workspace_output_gradient", bytes_each=form.element, elements=layers.embedding)
    if at in ("layer_backward", "last_backward"):
        work = max(layer_works(layers, plan, traits, tuning, form), key=lambda one: float(one.total))
        yield part("workspace_ffn", tokens=plan.tokens, bytes_per_token=work.ffn / plan.tokens)
        yield part("workspace_weight_gradient", bytes_each=new, elements=work.weight / new)
        yield part("workspace_unpacked", bytes_each=form.element, elements=work.unpacked / form.element)
