"""Why not TP=8 PP=3? The rule that refuses such plans, or what the best of them costs against the best of all."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from backend.job.job import Job
from backend.job.mapping import parameters, with_values
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check_resolved
from backend.planning.compare import Cost, cost
from backend.planning.enumerate import enumerate_plans
from backend.planning.plans import Candidate, Plans
from backend.planning.space import ACCUMULATION, MICRO_BATCH, SIZES

NAMES: Mapping[str, str] = {
    "TP": "parallel.tensor",
    "PP": "parallel.pipeline",
    "VPP": "parallel.virtual_pipeline",
    "CP": "parallel.context",
    "EP": "parallel.expert",
    "ETP": "parallel.expert_tensor",
    "MBS": MICRO_BATCH,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WhyNot:
    """An answer: either `problems`, or the best plan of that kind and its cost."""

    problems: tuple[Problem, ...] = ()
    """The rules that refuse every such plan."""
    best: Candidate | None = None
    """The best of those plans."""
    rank: int = 0
    """Its place among all plans, from 0."""
    cost: Cost | None = None


def parse_sizes(text: str) -> dict[str, int]:
    """`TP=8, PP=3` (also TP8 PP3) as job paths and sizes.

    Raises ProblemsError: why_not_unreadable, too_small, too_large.
    """
    sizes: dict[str, int] = {}
    rest = text
    for found in re.finditer(r"([A-Za-z]{2,3})\s*[=: ]?\s*(\d{1,6})(?!\d)", text):
        path = NAMES.get(found[1].upper())
        if path is None or path in sizes:
            raise _unreadable(text)
        sizes[path] = int(found[2])
        rest = rest.replace(found[0], "", 1)
    if not sizes or rest.strip(" ,;，；、"):
        raise _unreadable(text)
    for path, size in sizes.items():
        low, high = parameters()[path].minimum or 1, parameters()[path].maximum
        if size < low:
            raise ProblemsError([Problem(code="too_small", field=path, values={"value": size, "limit": low})])
        if high is not None and size > high:
            raise ProblemsError([Problem(code="too_large", field=path, values={"value": size, "limit": high})])
    return sizes


def _unreadable(text: str) -> ProblemsError:
    values = {"text": text[:80], "names": ", ".join(NAMES)}
    return ProblemsError([Problem(code="why_not_unreadable", values=values)])


def why_not(job: Job, sizes: Mapping[str, int], plans: Plans | None = None) -> WhyNot:
    """Why the best plan of the job does not have these sizes (job path -> size).

    Without a legal plan of theirs, the rules that refuse them with every other size at 1. Raises as enumerate_plans.
    """
    plans = plans or enumerate_plans(job)
    is_split = any(path.startswith("parallel.") for path in sizes)
    chosen = np.ones(len(plans), bool)
    for path, size in sizes.items():
        chosen &= plans.column(path) == size
    if is_split:
        # Hugging Face engines have no such sizes.
        chosen &= np.array([space.job.traits.is_megatron for space in plans.spaces], bool)[plans.part]
    ranks = np.flatnonzero(chosen)
    if not len(ranks):
        return WhyNot(problems=_refusals(job, sizes, plans))
    rank = int(ranks[0])
    return WhyNot(best=plans[rank], rank=rank, cost=cost(plans, rank))


def _refusals(job: Job, sizes: Mapping[str, int], plans: Plans) -> tuple[Problem, ...]:
    engine = job.engine if job.traits.is_megatron else "llamafactory-megatron"
    alone = {f"parallel.{name}": sizes.get(f"parallel.{name}", 1) for name in SIZES}
    batch = {MICRO_BATCH: sizes.get(MICRO_BATCH, job.training.micro_batch_size)}
    whole = {"engine": engine, "training.global_batch_size": plans.global_batch}
    tried = with_values(job, {**whole, **alone, **batch})
    found = errors(check_resolved(tried, resolve_model(job.model), resolve_gpu(job.cluster)))
    if tried.training.global_batch_size != job.training.global_batch_size:
        # The job wants accumulation, not a global batch: that is kept all the same.
        found = [replace(one, field=ACCUMULATION) if one.field.endswith("global_batch_size") else one for one in found]
    return tuple(found) or (Problem(code="no_such_plan", values={"count": len(plans)}),)
