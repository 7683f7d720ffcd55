"""The memory of a rank under a Hugging Face engine as products of named numbers."""

from collections.abc import Iterator

from backend.estimate.array_ops import Number
from backend.estimate.memory.hugging_face import model_states, packed_elements, reference_bytes
from backend.estimate.memory.hugging_face_step import held_gradients
from backend.estimate.memory.memory_term import Product, logits_product, product, products_of, share
from backend.estimate.memory.sharding import States
from backend.estimate.memory.stage import RankParameters
from backend.estimate.memory.terms import StageMemory
from backend.estimate.memory.tuning import Tuning, form_of
from backend.estimate.model.adapters import PACKED_BYTES
from backend.estimate.model.layers import ModelLayers
from backend.estimate.plan import Plan
from backend.job.traits import MemoryTraits


def hugging_face_products(
    layers: ModelLayers, plan: Plan, traits: MemoryTraits, tuning: Tuning, memory: StageMemory
) -> Iterator[Product]:
    """Yield the products of every term."""
    states = model_states(layers, plan, traits, tuning, memory.parameters)
    yield from _weights(layers, plan, traits, tuning, memory.parameters, states)
    yield from _gradients(plan, traits, tuning, memory, states)
    if states.optimizer_ranks:
        for kind, trained in _trained(memory.parameters):
            ranks = share(states.optimizer_ranks)
            yield product(f"optimizer_{kind}", bytes_each=traits.optimizer_bytes, **trained, **ranks)
    if memory.logits:
        yield _logits(layers, plan, tuning, memory.logits)
    yield from products_of((*memory.moment.terms(), *memory.terms), plan)


def _trained(parameters: RankParameters) -> Iterator[tuple[str, dict[str, Number]]]:
    yield "dense", {"dense_trained": parameters.trained_dense}
    yield "expert", {"expert_trained": parameters.trained_expert}


def _weights(
    layers: ModelLayers, plan: Plan, traits: MemoryTraits, tuning: Tuning, parameters: RankParameters, states: States
) -> Iterator[Product]:
    every = parameters.dense + parameters.expert
    packed = packed_elements(layers, tuning)
    if packed:
        yield product("weights_scales", bytes_each=traits.scale_bytes, packed=packed)
    ranks = share(states.weight_ranks or 1)
    if states.weight_ranks:
        for kind, trained in _trained(parameters):
            yield product(f"weights_{kind}", bytes_each=traits.weight_bytes, **trained, **ranks)
        element = 4 if tuning.single_precision else traits.frozen_bytes
        frozen = every - parameters.trained_dense - parameters.trained_expert
        yield product("weights_frozen", bytes_each=element, frozen=frozen - packed, **ranks)
        yield product("weights_packed", bytes_each=PACKED_BYTES, packed=packed, **ranks)
    if reference_bytes(plan, traits, tuning, parameters)[0]:
        yield product("weights_reference", bytes_each=traits.frozen_bytes, parameters=every, **ranks)


def _gradients(
    plan: Plan, traits: MemoryTraits, tuning: Tuning, memory: StageMemory, states: States
) -> Iterator[Product]:
    gradients, parameters = memory.moment.gradients, memory.parameters
    form = form_of(tuning, traits, tuning.trained.language)
    # Every rank keeps whole gradients while it accumulates them.
    are_whole = traits.accumulates_whole and gradients == held_gradients(plan, traits, parameters, states, form)
    if gradients and (are_whole or states.gradient_ranks):
        element, ranks = (form.element, {}) if are_whole else (traits.gradient_bytes, share(states.gradient_ranks))
        for kind, trained in _trained(parameters):
            yield product(f"gradients_{kind}", bytes_each=element, **trained, **ranks)
    if states.buckets:
        count = parameters.trained_dense + parameters.trained_expert
        yield product("gradients_buckets", bytes_each=traits.bucket_bytes, trained=count)
    yield product("gradients_reduce", bytes_each=2, elements=states.reduce / 2)


def _logits(layers: ModelLayers, plan: Plan, tuning: Tuning, bytes_on_rank: Number) -> Product:
    hidden = layers.output.hidden
    if tuning.liger:
        element = bytes_on_rank / (plan.tokens * hidden)
        return product("logits_chunk", bytes_each=element, tokens=plan.tokens, hidden=hidden)
    return logits_product(bytes_on_rank, plan.tokens, layers.embedding // hidden)
