"""Why a term is as large as it is: each term of each stage as products of named numbers, for the page to show."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from backend.estimate.estimate import GIB, Modelled, modelled
from backend.estimate.megatron import element_bytes, layer_cost
from backend.estimate.schedule import in_flight
from backend.estimate.stage import stages
from backend.estimate.terms import GROUPED_BYTES, STATIC_BYTES, StageMemory
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu

TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace")
NOTHING = 1e-6
"""Relative to a stage: what is less is rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A product that belongs to a term; the parts of a term add up to it."""

    term: str
    """One of TERMS."""
    name: str
    """What is counted; words under `explain.<name>`."""
    factors: tuple[tuple[str, float], ...]
    """(name, number), words under `explain.factor.<name>`; their product is in bytes."""

    @property
    def gib(self) -> float:
        """The product, GiB."""
        return float(prod(number for _, number in self.factors)) / GIB


def explain(job: Job, shape: ModelShape, gpu: Gpu) -> tuple[tuple[Part, ...], ...]:
    """For every stage its terms taken apart; raises what estimate_resolved raises."""
    found = modelled(job, shape, gpu)
    return tuple(tuple(_stage(found, memory)) for memory in found.memories)


def _stage(found: Modelled, memory: StageMemory) -> Iterator[Part]:
    """The products that are known by name, and for each term what is left as one number."""
    known = list(_states(found, memory)) + list(_activations(found, memory)) + list(_rest(found, memory))
    for term in TERMS:
        total = float(getattr(memory, term))
        named = _within([part for part in known if part.term == term and part.gib > 0], total)
        yield from named
        left = total - sum(part.gib for part in named) * GIB
        if left > NOTHING * float(memory.peak):
            yield Part(term=term, name=f"{term}_rest", factors=(("bytes", left),))


def _within(parts: list[Part], total: float) -> list[Part]:
    """The parts, as far as their sum stays within the term: at the fullest moment a part may be gone already."""
    kept: list[Part] = []
    for part in parts:
        if sum(item.gib for item in (*kept, part)) * GIB <= total * (1 + NOTHING):
            kept.append(part)
    return kept


def _states(found: Modelled, memory: StageMemory) -> Iterator[Part]:
    traits, plan, parameters = found.traits, found.plan, memory.parameters
    pairs = [("dense", parameters.trained_dense), ("expert", parameters.trained_expert)]
    if found.is_megatron:
        weights, gradients = {"dense": 1, "expert": 1}, {"dense": 1, "expert": 1}
        optimizer = {"dense": plan.optimizer_shards, "expert": plan.expert_optimizer_shards}
    else:
        by = plan.data
        weights = dict.fromkeys(("dense", "expert"), by if traits.shards == "parameters" else 1)
        gradients = dict.fromkeys(("dense", "expert"), by if traits.shards in ("gradients", "parameters") else 1)
        optimizer = dict.fromkeys(("dense", "expert"), by if traits.shards != "none" else 1)
    for kind, count in pairs:
        for term, each, ranks in (
            ("weights", traits.weight_bytes, weights[kind]),
            ("gradients", traits.gradient_bytes, gradients[kind]),
            ("optimizer", traits.optimizer_bytes, optimizer[kind]),
        ):
            share = (("ranks_share", 1 / ranks),) if ranks != 1 else ()
            kept = (
                (("kept_on_gpu", 1 - plan.offload_fraction),) if term == "optimizer" and plan.offload_fraction else ()
            )
            factors = (("bytes_each", each), (f"{kind}_trained", count), *share, *kept)
            yield Part(term=term, name=f"{term}_{kind}", factors=factors)
    frozen = parameters.dense + parameters.expert - parameters.trained_dense - parameters.trained_expert
    if found.is_megatron:
        yield Part(
            term="weights",
            name="weights_frozen",
            factors=(("bytes_each", element_bytes(traits)), ("frozen", frozen)),
        )


def _activations(found: Modelled, memory: StageMemory) -> Iterator[Part]:
    """Layers x micro-batches in flight x what one layer keeps of one micro-batch."""
    plan, layers = found.plan, found.layers
    if not found.is_megatron or found.run is None:
        return
    stage = stages(layers, plan)[memory.stage]
    counts = in_flight(plan.pipeline, plan.virtual_pipeline, plan.micro_batches, stage.index)
    for index, kind in enumerate((layers.dense, layers.sparse)):
        held = sum(chunk[index] * flying for chunk, flying in zip(stage.chunks, counts, strict=True))
        if kind is None or not held:
            continue
        if plan.recompute == "full":
            if plan.recompute_layers == 1:
                each = element_bytes(found.traits) * layers.output.hidden * plan.whole_share
                yield _kept("activations_inputs", held, plan.tokens, each)
        else:
            cost = layer_cost(kind, plan, found.traits, found.run)
            yield _kept(f"activations_{kind.name}", held, plan.tokens, cost.kept / plan.tokens)


def _kept(name: str, held: float, tokens: float, each: float) -> Part:
    factors = (("layer_micro_batches", held), ("tokens", tokens), ("bytes_per_token", each))
    return Part(term="activations", name=name, factors=factors)


def _rest(found: Modelled, memory: StageMemory) -> Iterable[Part]:
    plan, layers = found.plan, found.layers
    vocabulary = layers.embedding // layers.output.hidden
    entries = float(plan.tokens) * vocabulary / plan.tensor
    if memory.logits:
        each = float(memory.logits) / entries
        factors = [("bytes_each", each), ("tokens", plan.tokens), ("vocabulary", vocabulary)]
        if plan.tensor != 1:
            factors.append(("ranks_share", 1 / plan.tensor))
        yield Part(term="logits", name="logits", factors=tuple(factors))
    yield Part(term="workspace", name="workspace_libraries", factors=(("bytes", STATIC_BYTES),))
    if found.is_megatron and stages(layers, plan)[memory.stage].sparse:
        yield Part(term="workspace", name="workspace_grouped", factors=(("bytes", GROUPED_BYTES),))
