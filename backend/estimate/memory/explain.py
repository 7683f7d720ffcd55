"""Why a term is as large as it is: each term of each stage as products of named numbers, for the page to show."""

from collections.abc import Iterator

from backend.estimate.estimate import MemoryEstimate, estimate_memory, tuning_of
from backend.estimate.memory.explain_hugging_face import hugging_face_parts
from backend.estimate.memory.explain_megatron import megatron_parts
from backend.estimate.memory.memory_term import GIB, Part
from backend.estimate.memory.terms import StageMemory
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu

TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace")
NOTHING = 1e-6
"""Relative to a stage: what is less is rounding."""


def explain(
    job: Job, shape: ModelShape, gpu: Gpu, memory: MemoryEstimate | None = None
) -> tuple[tuple[Part, ...], ...]:
    """Return the parts of every term, for each stage; `memory` is the result of `estimate_memory`.

    Raises what `estimate_resolved` raises.
    """
    found = memory or estimate_memory(job, shape, gpu)
    return tuple(tuple(_stage(job, found, stage)) for stage in found.stages)


def _stage(job: Job, found: MemoryEstimate, memory: StageMemory) -> Iterator[Part]:
    """The parts that are there, term by term; what they leave of a term is shown as one number, never hidden."""
    if found.run is not None:
        parts = megatron_parts(found.layers, found.plan, found.traits, found.run, memory)
    else:
        parts = hugging_face_parts(found.layers, found.plan, found.traits, tuning_of(job, found.trained), memory)
    known = [part for part in parts if part.gib > 0]
    for term in TERMS:
        mine = [part for part in known if part.term == term]
        yield from mine
        left = float(getattr(memory, term)) - sum(part.gib for part in mine) * GIB
        if abs(left) > NOTHING * float(memory.peak):
            yield Part(term=term, name="rest", factors=(("bytes", left),))
