"""The terms of each stage as products of named numbers, which the page shows as formulas."""

from collections.abc import Iterator

from backend.estimate.estimate import MemoryEstimate, estimate_memory
from backend.estimate.memory.memory_term import GIB, Product
from backend.estimate.memory.terms import StageMemory
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu

TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace")
ROUNDING = 1e-6
"""Share of a stage's memory; smaller differences are rounding errors."""


def explain(
    job: Job, shape: ModelShape, gpu: Gpu, memory: MemoryEstimate | None = None
) -> tuple[tuple[Product, ...], ...]:
    """Return the products of every term, for each stage; `memory` is the result of `estimate_memory`.

    Raises what `estimate_resolved` raises.
    """
    memory = memory or estimate_memory(job, shape, gpu)
    return tuple(tuple(_stage(stage)) for stage in memory.stages)


def _stage(stage: StageMemory) -> Iterator[Product]:
    """Yield the products of each term; one named `rest` is the remainder of a term, so that none is hidden."""
    products_with_bytes = [product for product in stage.products() if product.gib]
    for term in TERMS:
        own = [product for product in products_with_bytes if product.term == term]
        yield from own
        remainder = float(getattr(stage, term)) - sum(product.gib for product in own) * GIB
        if abs(remainder) > ROUNDING * float(stage.peak):
            yield Product(term=term, name="rest", factors=(("bytes", remainder),))
