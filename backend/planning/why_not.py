"""Why not TP=8 PP=3? The rule that refuses such plans, or what the best of them costs against the best of all."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from backend.estimate import Estimate, over_gpu_gib, over_host_gib
from backend.job.job import Job
from backend.job.mapping import parameters, with_values
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import Problem, ProblemsError, errors
from backend.job.rules import check_resolved
from backend.planning.compare import Cost, cost
from backend.planning.enumerate import enumerate_plans
from backend.planning.plans import Candidate, Plans
from backend.planning.space import ACCUMULATION, MICRO_BATCH, SIZES, divisors

TENSOR, PIPELINE, WANTED = "parallel.tensor", "parallel.pipeline", "training.global_batch_size"
NAMES: Mapping[str, str] = {
    "TP": TENSOR,
    "PP": PIPELINE,
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
    """The rules that refuse every such plan; beside a plan, what they warn of."""
    best: Candidate | None = None
    """The best of those plans."""
    rank: int | None = None
    """Its place among all plans, from 0; None where it is not among those that are compared."""
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

    Without a legal plan of theirs, the rules that refuse them where the sizes that are left open suit them best; a
    legal plan that enumeration leaves out, as TP across nodes, is computed. Raises as enumerate_plans.
    """
    plans = plans or enumerate_plans(job)
    batch = sizes.get(MICRO_BATCH, 1)
    if len(plans) and batch not in plans.column(MICRO_BATCH):
        # The job's own micro-batch is always among those that are compared.
        tried = with_values(job, {MICRO_BATCH: batch, WANTED: plans.global_batch})
        plans = enumerate_plans(tried, [space.job.engine for space in plans.spaces])
    is_split = any(path.startswith("parallel.") for path in sizes)
    chosen = np.ones(len(plans), bool)
    for path, size in sizes.items():
        chosen &= plans.column(path) == size
    if is_split:
        # Hugging Face engines have no such sizes.
        chosen &= np.array([space.job.traits.is_megatron for space in plans.spaces], bool)[plans.part]
    ranks = np.flatnonzero(chosen)
    if not len(ranks):
        return _not_enumerated(job, sizes, plans)
    rank = int(ranks[0])
    return WhyNot(best=plans[rank], rank=rank, cost=cost(plans, rank))


def _not_enumerated(job: Job, sizes: Mapping[str, int], plans: Plans) -> WhyNot:
    """The rules that refuse it, or the cost of a plan that they let pass."""
    tried, found = min(_tries(job, sizes, plans), key=lambda one: len(_refusals(job, one[1])))
    if refused := _refusals(job, found):
        return WhyNot(problems=refused)
    warned = tuple(one for one in found if one.severity == "warning" and one.field in sizes)
    best = Candidate(job=tried, shape=plans.shape, gpu=plans.gpu, edits={}, is_pareto=False)
    return WhyNot(problems=warned, best=best, cost=_cost(best.estimate, plans))


def _tries(job: Job, sizes: Mapping[str, int], plans: Plans) -> Iterator[tuple[Job, list[Problem]]]:
    """The sizes with TP and PP that they leave open, and what the rules say: the least split first.

    Where a micro-batch is asked about, the most split first: fewer copies share the global batch.
    """
    engine = job.engine if job.traits.is_megatron else "llamafactory-megatron"
    fixed: dict[str, object] = {**{f"parallel.{name}": 1 for name in SIZES}, "engine": engine,
                                WANTED: plans.global_batch, **sizes}  # fmt: skip
    world, shape, gpu = job.world_size, resolve_model(job.model), resolve_gpu(job.cluster)
    tensors = [sizes[TENSOR]] if TENSOR in sizes else divisors(job.cluster.gpus_per_node)
    pipelines = [sizes[PIPELINE]] if PIPELINE in sizes else [size for size in divisors(world) if size <= shape.layers]
    if sizes.get("parallel.virtual_pipeline", 1) > 1:
        pipelines = [size for size in pipelines if size > 1] or [1]
    opened = sorted(product(tensors, pipelines), key=prod, reverse=MICRO_BATCH in sizes)
    for tensor, pipeline in opened:
        tried = with_values(job, {**fixed, TENSOR: tensor, PIPELINE: pipeline})
        yield tried, check_resolved(tried, shape, gpu)


def _refusals(job: Job, found: Iterable[Problem]) -> tuple[Problem, ...]:
    """The errors, without what only follows from another, and at the field that the user has."""
    refused = errors(found)
    if any(one.code in ("ranks_not_divisible", "expert_ranks_not_divisible") for one in refused):
        # Then DP is no whole number.
        refused = [one for one in refused if one.field != WANTED]
    if job.training.global_batch_size is None:
        # The job wants accumulation, not a global batch: that is kept all the same.
        refused = [replace(one, field=ACCUMULATION) if one.field == WANTED else one for one in refused]
    return tuple(refused)


def _cost(found: Estimate, plans: Plans) -> Cost:
    """Against the best of the plans."""
    memory = {"over_gib": over_gpu_gib(found), "over_host_gib": over_host_gib(plans.job, found)}
    best = plans[0].estimate if len(plans) else None
    if not best or not best.time_s or not found.time_s or not best.iteration_s or not found.iteration_s:
        return Cost(**memory, slower=None, part=None)
    grown = {name: value - best.time_s.get(name, 0.0) for name, value in found.time_s.items()}
    slower = 1 - best.iteration_s / found.iteration_s
    return Cost(**memory, slower=slower, part=max(grown, key=lambda name: grown[name]))
