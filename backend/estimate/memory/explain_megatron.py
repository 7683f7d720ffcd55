"""The memory of a Megatron stage as products of named numbers."""

from collections.abc import Iterator

from backend.estimate.memory.megatron import PlanCosts, Run, element_bytes
from backend.estimate.memory.memory_term import Product, logits_product, product, products_of, share
from backend.estimate.memory.stage import Stage, stages
from backend.estimate.memory.terms import StageMemory
from backend.estimate.model.layers import ModelLayers, has_experts
from backend.estimate.plan import Plan
from backend.estimate.time.schedule import in_flight
from backend.job.traits import MemoryTraits


def megatron_products(
    layers: ModelLayers, plan: Plan, traits: MemoryTraits, run: Run, costs: PlanCosts, memory: StageMemory
) -> Iterator[Product]:
    """Yield the products of every term of one stage."""
    yield from _states(plan, traits, run, memory)
    yield from _saved(layers, plan, stages(layers, plan)[memory.stage], costs)
    if memory.logits:
        yield logits_product(memory.logits, plan.tokens, layers.embedding // layers.output.hidden, plan.tensor)
    yield from products_of((*memory.moment.terms(), *memory.terms), plan)


def _states(plan: Plan, traits: MemoryTraits, run: Run, memory: StageMemory) -> Iterator[Product]:
    parameters = memory.parameters
    share_on_gpu = {"kept_on_gpu": 1 - plan.offload_fraction} if plan.offload_fraction else {}
    for kind, count, shards in (
        ("dense", parameters.trained_dense, plan.optimizer_shards),
        ("expert", parameters.trained_expert, plan.expert_optimizer_shards),
    ):
        trained = {f"{kind}_trained": count}
        yield product(f"weights_{kind}", bytes_each=traits.weight_bytes, **trained)
        yield product(f"gradients_{kind}", bytes_each=traits.gradient_bytes, **trained)
        yield product(
            f"optimizer_{kind}", bytes_each=traits.optimizer_bytes, **trained, **share(shards), **share_on_gpu
        )
    every = parameters.dense + parameters.expert
    frozen = every - parameters.trained_dense - parameters.trained_expert
    yield product("weights_frozen", bytes_each=element_bytes(traits), frozen=frozen)
    if run.reference:
        yield product("weights_reference", bytes_each=traits.weight_bytes, parameters=every)


def _saved(layers: ModelLayers, plan: Plan, stage: Stage, costs: PlanCosts) -> Iterator[Product]:
    """Yield saved activations: layers x micro-batches in flight x bytes of one layer, and those of the vision tower."""
    counts = in_flight(plan.pipeline, plan.virtual_pipeline, plan.micro_batches, stage.index)
    chunks = list(zip(stage.chunks, counts, strict=True))
    if plan.full_recompute:
        units = sum(-(-chunk.layers // plan.recompute_layers) * count for chunk, count in chunks)
        per_token = costs.unit / plan.tokens
        yield product("activations_inputs", unit_micro_batches=units, tokens=plan.tokens, bytes_per_token=per_token)
        if live := sum(chunk.mtp * count for chunk, count in chunks):
            per_token = costs.mtp_unit / plan.tokens
            yield product("activations_mtp", layer_micro_batches=live, tokens=plan.tokens, bytes_per_token=per_token)
    else:
        for index, (kind, cost) in enumerate(zip(layers.kinds, costs.kinds, strict=True)):
            live = sum(chunk.counts[index] * count for chunk, count in chunks)
            if live:
                name = "mtp" if kind.name == "mtp" else "sparse" if has_experts(kind) else "dense"
                per_token = cost.saved / plan.tokens
                yield product(
                    f"activations_{name}", layer_micro_batches=live, tokens=plan.tokens, bytes_per_token=per_token
                )
    if costs.passed_on is not None and (live := sum(count for chunk, count in chunks if not chunk.first)):
        per_token = costs.passed_on / plan.tokens
        yield product("activations_passed_on", micro_batches=live, tokens=plan.tokens, bytes_per_token=per_token)
    if stage.first and costs.tower:
        per_token = costs.tower / plan.vision_patches
        yield product(
            "activations_tower", micro_batches=counts[0], patches=plan.vision_patches, bytes_per_patch=per_token
        )
