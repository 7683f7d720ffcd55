"""The chosen plan's memory: each stage's terms as they are stacked, and the products each term was computed from."""

from typing import Any

from app.wizard.draft_state import Reading
from backend.estimate import Estimate, Part, StageEstimate, explain
from backend.estimate.plan import plan_of
from backend.job.job import Job
from backend.job.presets import Gpu

TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace")
"""What torch's allocator hands out, in the order it is stacked."""


def memory(reading: Reading) -> dict[str, Any] | None:
    """Every stage's terms with why they are as large as they are, GiB; None where memory is not modelled."""
    found, job = reading.estimate, reading.job
    if found is None or job is None or reading.shape is None or reading.gpu is None:
        return None
    explained = explain(job, reading.shape, reading.gpu, reading.memory)
    is_given = job.cluster.outside_gib is not None
    stages = [
        _stage(found, stage, parts, is_given=is_given) for stage, parts in zip(found.stages, explained, strict=True)
    ]
    return {
        "gpu_gib": found.gpu_memory_gib,
        "terms": [*TERMS, "reserved", "outside"],
        "stages": stages,
        "host": _host(job, found),
        "cutoff_len": None if job.training.packing else job.training.cutoff_len,
        "fullest_tokens": _fullest_tokens(job, reading.gpu),
    }


def _fullest_tokens(job: Job, gpu: Gpu) -> int | None:
    """Of the micro-batch that the memory is for; None where every sequence of it is full."""
    plan = plan_of(job, None, flash_attention=gpu.supports_bf16)
    is_full = plan.sequence_length == job.training.cutoff_len
    return None if is_full else round(float(plan.micro_batch * plan.sequence_length))


def _host(job: Job, found: Estimate) -> dict[str, float | None] | None:
    """What a node's RAM holds of the plan and what it is; None where nothing is offloaded."""
    if not found.host_memory_gib:
        return None
    return {"need_gib": round(found.host_memory_gib, 3), "node_gib": job.cluster.host_memory_gib}


def _stage(found: Estimate, stage: StageEstimate, parts: tuple[Part, ...], *, is_given: bool) -> dict[str, Any]:
    """`is_given`: the job says what lies outside torch."""
    share = found.reserved_gib / found.peak_gib - 1
    terms = {term: getattr(stage, f"{term}_gib") for term in TERMS}
    terms |= {"reserved": stage.peak_gib * share, "outside": found.outside_gib}
    why = [_line(part.term, part.name, part.factors, part.gib) for part in parts]
    allocated = (("allocated_gib", stage.peak_gib), ("reserve_share", share))
    why.append(_line("reserved", "reserved", allocated, terms["reserved"]))
    source = "outside_gib" if is_given else "outside_computed"
    why.append(_line("outside", "outside", ((source, found.outside_gib),), found.outside_gib))
    rounded = {name: round(value, 3) for name, value in terms.items()}
    return {"stage": stage.stage, "layers": stage.layers, "parameters": stage.parameters, **rounded,
            "need_gib": round(sum(terms.values()), 3), "why": why}  # fmt: skip


def _line(term: str, name: str, factors: tuple[tuple[str, float], ...], gib: float) -> dict[str, Any]:
    """Words under `explain.<name>` and `explain.factor.<factor>`."""
    return {"term": term, "name": name, "gib": round(gib, 3), "factors": [[key, number] for key, number in factors]}
