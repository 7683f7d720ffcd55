"""Memory of the chosen plan: the terms of each stage, and the factors of each term."""

from typing import Any

from app.wizard.draft_state import DraftState
from backend.estimate import TERMS, Estimate, Product, StageEstimate, explain
from backend.estimate.plan import plan_of
from backend.job.attention import attention_kind
from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu


def memory(state: DraftState) -> dict[str, Any] | None:
    """Return each stage's terms in GiB with their explanation. None if memory is not modelled."""
    estimate, job = state.estimate, state.job
    if estimate is None or job is None or state.shape is None or state.gpu is None:
        return None
    explained = explain(job, state.shape, state.gpu, state.memory)
    is_given = job.cluster.outside_gib is not None
    stages = [
        _stage(estimate, stage, products, is_given=is_given)
        for stage, products in zip(estimate.stages, explained, strict=True)
    ]
    return {
        "gpu_gib": estimate.gpu_memory_gib,
        "terms": [*TERMS, "reserved", "outside"],
        "stages": stages,
        "host": _host_memory(job, estimate),
        "cutoff_len": None if job.training.packing else job.training.cutoff_len,
        "largest_tokens": _largest_tokens(job, state.shape, state.gpu),
    }


def _largest_tokens(job: Job, shape: ModelShape, gpu: Gpu) -> int | None:
    """Return the tokens of the largest micro-batch. None if all its sequences are full."""
    plan = plan_of(job, None, attention=attention_kind(job, shape, gpu))
    is_full = plan.sequence_length == job.training.cutoff_len
    return None if is_full else round(float(plan.micro_batch * plan.sequence_length))


def _host_memory(job: Job, estimate: Estimate) -> dict[str, float | None] | None:
    """Return the RAM that the plan needs on a node, and the node's RAM. None without offload."""
    if not estimate.host_memory_gib:
        return None
    return {"need_gib": round(estimate.host_memory_gib, 3), "node_gib": job.cluster.host_memory_gib}


def _stage(
    estimate: Estimate, stage: StageEstimate, products: tuple[Product, ...], *, is_given: bool
) -> dict[str, Any]:
    """Return a stage's terms. `is_given`: the job sets the memory outside torch."""
    share = estimate.reserved_gib / estimate.peak_gib - 1
    terms = {term: getattr(stage, f"{term}_gib") for term in TERMS}
    terms |= {"reserved": stage.peak_gib * share, "outside": estimate.outside_gib}
    why = [_explanation(product.term, product.name, product.factors, product.gib) for product in products]
    allocated = (("allocated_gib", stage.peak_gib), ("reserve_share", share))
    why.append(_explanation("reserved", "reserved", allocated, terms["reserved"]))
    source = "outside_gib" if is_given else "outside_computed"
    why.append(_explanation("outside", "outside", ((source, estimate.outside_gib),), estimate.outside_gib))
    rounded = {name: round(value, 3) for name, value in terms.items()}
    return {"stage": stage.stage, "layers": stage.layers, "parameters": stage.parameters, **rounded,
            "need_gib": round(sum(terms.values()), 3), "why": why}  # fmt: skip


def _explanation(term: str, name: str, factors: tuple[tuple[str, float], ...], gib: float) -> dict[str, Any]:
    """Return a line of the explanation: words `explain.<name>` and `explain.factor.<factor>`."""
    return {"term": term, "name": name, "gib": round(gib, 3), "factors": [[key, number] for key, number in factors]}
