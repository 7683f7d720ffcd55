"""Answers to "why not TP=8 PP=3?": the rule that refuses such plans, or what the best of them costs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import numpy as np

from backend.estimate import Estimate, over_gpu_gib, over_host_gib
from backend.job.job import Job
from backend.job.mapping import parameters, with_values
from backend.job.presets import resolve_gpu, resolve_model
from backend.job.problems import Problem, ProblemsError, errors, quoted
from backend.job.rules import check_resolved
from backend.job.rules.batched import as_sizes, refuses
from backend.job.traits import sibling
from backend.planning.compare import Cost, cost
from backend.planning.enumerate import enumerate_plans
from backend.planning.lazy_sort import Indices, Mask
from backend.planning.plans import Candidate, Plans
from backend.planning.space import ACCUMULATION, MICRO_BATCH, SIZES, divisors

TENSOR, PIPELINE, CONTEXT = "parallel.tensor", "parallel.pipeline", "parallel.context"
EXPERT_TENSOR = "parallel.expert_tensor"
GLOBAL_BATCH, REPLICAS = "training.global_batch_size", "data_parallel"
NAMES: Mapping[str, str] = {
    "TP": TENSOR,
    "PP": PIPELINE,
    "VPP": "parallel.virtual_pipeline",
    "CP": CONTEXT,
    "EP": "parallel.expert",
    "ETP": EXPERT_TENSOR,
    "DP": REPLICAS,
    "MBS": MICRO_BATCH,
    "GA": ACCUMULATION,
}
SHORT: Mapping[str, str] = {path: name for name, path in NAMES.items()}
_DERIVED = (REPLICAS, ACCUMULATION)
"""Sizes that follow from the other sizes and the global batch."""
_NUMBER = re.compile(r"([A-Za-z]+)\s*[=:：＝]?\s*([+-]?\d+(?:\.\d+)?)")
_DIGITS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class WhyNot:
    """An answer: the best plan of the requested sizes and its cost, or `problems` and what is legal instead.

    `sizes`, `legal` and `nearest` are set if the rules refuse all plans of these sizes.
    """

    problems: tuple[Problem, ...] = ()
    """The rules that refuse every such plan. If there is a plan, its warnings."""
    best: Candidate | None = None
    """The best plan of the requested sizes."""
    rank: int | None = None
    """Rank of the best plan among all plans, from 0; None if it is not among the compared plans."""
    cost: Cost | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The requested sizes, as parse_sizes returns them."""
    legal: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each requested size, its legal values if the other sizes stay as requested."""
    nearest: Candidate | None = None
    """The legal plan whose sizes are nearest."""


def parse_sizes(text: str) -> dict[str, int]:
    """Parse `TP=8, PP=3` (also TP8 PP3) into job paths and sizes. DP and GA become REPLICAS and ACCUMULATION.

    Raises ProblemsError with why_not_unreadable, or with one problem for each wrong size: too_small, too_large,
    size_not_whole, size_twice.
    """
    sizes: dict[str, int] = {}
    problems: list[Problem] = []
    for match in _NUMBER.finditer(text):
        name, number = match[1].upper(), match[2]
        path = NAMES.get(name)
        if path is None:
            raise _unreadable(text)
        if path in sizes:
            problems.append(Problem(code="size_twice", field=path, values={"field": name}))
        elif "." in number:
            problems.append(Problem(code="size_not_whole", field=path, values={"field": name, "value": number}))
        else:
            sizes[path] = int(number[:_DIGITS])
            problems += _out_of_range(path, sizes[path], number[:_DIGITS])
    if not (sizes or problems) or re.sub(r"[\s,;，；、]", "", _NUMBER.sub("", text)):
        raise _unreadable(text)
    if problems:
        raise ProblemsError(problems)
    return sizes


def _out_of_range(path: str, size: int, written: str) -> Iterator[Problem]:
    parameter = parameters().get(path)
    low, high = (parameter.minimum or 1, parameter.maximum) if parameter else (1, None)
    values = {"field": SHORT[path], "value": written}
    if size < low:
        yield Problem(code="too_small", field=path, values={**values, "limit": low})
    elif high is not None and size > high:
        yield Problem(code="too_large", field=path, values={**values, "limit": high})


def _unreadable(text: str) -> ProblemsError:
    values = {"text": quoted(text), "names": ", ".join(NAMES)}
    return ProblemsError([Problem(code="why_not_unreadable", values=values)])


def why_not(job: Job, sizes: Mapping[str, int], plans: Plans | None = None) -> WhyNot:
    """Return why the best plan of the job does not have these sizes (of parse_sizes).

    - If there are legal plans of these sizes: the best of them and its cost. A legal plan that enumeration omits, such
      as TP across nodes, is computed.
    - Else: the fewest rules that refuse the sizes, over all values of the sizes that are not requested.

    Raises as enumerate_plans.
    """
    plans = plans or enumerate_plans(job)
    if len(plans) and sizes.get(MICRO_BATCH, 1) not in _sizes(plans, MICRO_BATCH):
        plans = _with_micro_batch(job, sizes, plans)
    ranks = np.flatnonzero(_has_sizes(plans, sizes))
    if not len(ranks):
        return _beyond_nodes(job, sizes, plans) or _refused(_problems(job, sizes, plans), sizes, plans)
    rank = int(ranks[0])
    return WhyNot(best=plans[rank], rank=rank, cost=cost(plans, rank))


def _with_micro_batch(
    job: Job, sizes: Mapping[str, int], plans: Plans, beyond: Mapping[str, int] | None = None
) -> Plans:
    """Return the plans of the same engines and global batch, with the requested micro-batch among them."""
    changed = with_values(job, {MICRO_BATCH: sizes.get(MICRO_BATCH, 1)})
    return enumerate_plans(changed, [space.job.engine for space in plans.spaces], plans.global_batch, beyond)


def _beyond_nodes(job: Job, sizes: Mapping[str, int], plans: Plans) -> WhyNot | None:
    """Return the best plan whose requested TP or ETP is larger than a node. None if it is not larger, or not legal."""
    sizes_in_node = divisors(job.cluster.gpus_per_node)
    beyond = {path: sizes[path] for path in (TENSOR, EXPERT_TENSOR) if sizes.get(path, 1) not in sizes_in_node}
    if not beyond:
        return None
    plans_beyond = _with_micro_batch(job, sizes, plans, beyond)
    ranks = np.flatnonzero(_has_sizes(plans_beyond, sizes))
    if not len(ranks):
        return None
    best = plans_beyond[int(ranks[0])]
    warnings = tuple(problem for problem in best.warnings if problem.severity == "warning" and problem.field in sizes)
    return WhyNot(problems=warnings, best=best, cost=_cost(best.estimate, plans))


def _has_sizes(plans: Plans, sizes: Mapping[str, int]) -> Mask:
    """Return for each plan whether it has these sizes."""
    chosen = _comparable(plans, sizes)
    for path, size in sizes.items():
        chosen &= _sizes(plans, path) == size
    return chosen


def _comparable(plans: Plans, paths: Iterable[str]) -> Mask:
    """Return for each plan whether it can have these sizes: Hugging Face engines have no parallel sizes."""
    is_split = any(path.startswith("parallel.") for path in paths)
    comparable = np.array([space.job.traits.is_megatron or not is_split for space in plans.spaces], bool)
    return comparable[plans.engine]


def _sizes(plans: Plans, path: str) -> Indices:
    """Return the size of every plan."""
    if path not in _DERIVED:
        return as_sizes(plans.column(path))
    replicas = plans.job.world_size // (_sizes(plans, TENSOR) * _sizes(plans, PIPELINE) * _sizes(plans, CONTEXT))
    return replicas if path == REPLICAS else plans.global_batch // (_sizes(plans, MICRO_BATCH) * replicas)


def _problems(job: Job, sizes: Mapping[str, int], plans: Plans) -> tuple[Problem, ...]:
    """Return the problems that refuse every plan with these sizes."""
    chosen = {path: size for path, size in sizes.items() if path not in _DERIVED}
    if len(chosen) < len(sizes) and _has_sizes(plans, chosen).any():
        return (_no_plan_with(sizes, plans),)
    paths = {path for space in plans.spaces for path in space.axis_of}
    tries = _tries(job, chosen, plans, sizes.get(REPLICAS))
    return min((_refusals(job, [each for each in problems if refuses(each, paths)]) for problems in tries), key=len)


def _no_plan_with(sizes: Mapping[str, int], plans: Plans) -> Problem:
    """Return the problem that DP or accumulation follows from the other sizes and has another value."""
    derived = [path for path in sizes if path in _DERIVED]
    requested = ", ".join(f"{SHORT[path]} = {sizes[path]}" for path in derived)
    values = {"asked": requested, "ranks": plans.job.world_size, "batch": plans.global_batch}
    return Problem(code="size_follows", field=derived[0], values=values)


def _refused(problems: tuple[Problem, ...], sizes: Mapping[str, int], plans: Plans) -> WhyNot:
    """Return the answer with what is legal instead."""
    legal = {}
    for path in sizes:
        chosen = _comparable(plans, sizes)
        for other_path, size in sizes.items():
            chosen &= (_sizes(plans, other_path) == size) | (other_path == path)
        legal[path] = tuple(np.unique(_sizes(plans, path)[chosen]).tolist())
    # The plans have only powers of two of micro-batch and accumulation, so their legal values are not listed.
    listed = {path: values for path, values in legal.items() if values and path not in (MICRO_BATCH, ACCUMULATION)}
    return WhyNot(problems=problems, sizes=sizes, legal=listed, nearest=_nearest(sizes, plans))


def _nearest(sizes: Mapping[str, int], plans: Plans) -> Candidate | None:
    """Return the best of the plans whose sizes are the fewest doublings away."""
    ranks = np.flatnonzero(_comparable(plans, sizes))
    if not len(ranks):
        return None
    distance = sum(np.abs(np.log2(_sizes(plans, path)[ranks] / size)) for path, size in sizes.items())
    return plans[int(ranks[np.argmin(distance)])]


def _tries(job: Job, sizes: Mapping[str, int], plans: Plans, replicas: int | None) -> Iterator[list[Problem]]:
    """Yield the problems of the sizes with every TP and PP that is not requested, the smallest TP x PP first.

    - If DP is requested too, only TP and PP that lead to it are tried, if there are any.
    - If a micro-batch is requested, the largest TP x PP comes first: fewer replicas share the global batch.
    """
    engine = sibling(job.traits, "megatron")
    fixed: dict[str, object] = {
        **{f"parallel.{name}": 1 for name in SIZES},
        "engine": engine,
        "parallel.pipeline_layout": None,
        GLOBAL_BATCH: plans.global_batch,
        **sizes,
    }
    world, shape, gpu = job.world_size, resolve_model(job.model), resolve_gpu(job.cluster)
    tensors = [sizes[TENSOR]] if TENSOR in sizes else divisors(job.cluster.gpus_per_node)
    pipelines = [sizes[PIPELINE]] if PIPELINE in sizes else [size for size in divisors(world) if size <= shape.layers]
    if sizes.get("parallel.virtual_pipeline", 1) > 1:
        pipelines = [size for size in pipelines if size > 1] or [1]
    pairs = sorted(product(tensors, pipelines), key=prod, reverse=MICRO_BATCH in sizes)
    # A size that is not requested must not be the reason for the refusal.
    context = sizes.get(CONTEXT, 1)
    pairs = [pair for pair in pairs if world % (prod(pair) * context) == 0] or pairs
    pairs = [pair for pair in pairs if replicas in (None, world // (prod(pair) * context))] or pairs
    for tensor, pipeline in pairs:
        changed = with_values(job, {**fixed, TENSOR: tensor, PIPELINE: pipeline})
        yield check_resolved(changed, shape, gpu)


def _refusals(job: Job, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the problems that refuse a plan, at the fields that the user sees.

    Problems that follow from another are omitted. If there is an error, only errors are returned.
    """
    refusals = errors(problems) or list(problems)
    if any(problem.code in ("ranks_not_divisible", "expert_ranks_not_divisible") for problem in refusals):
        # DP is no whole number then.
        refusals = [problem for problem in refusals if problem.field != GLOBAL_BATCH]
    if job.training.global_batch_size is None:
        # The job sets accumulation, and the user does not see a global batch.
        refusals = [
            replace(problem, field=ACCUMULATION) if problem.field == GLOBAL_BATCH else problem for problem in refusals
        ]
    return tuple(refusals)


def _cost(estimate: Estimate, plans: Plans) -> Cost:
    """Return the cost of an estimate against the best plan."""
    memory = {"over_gib": over_gpu_gib(estimate), "over_host_gib": over_host_gib(plans.job, estimate)}
    best = plans[0].estimate if len(plans) else None
    if not best or not best.time_s or not estimate.time_s or not best.iteration_s or not estimate.iteration_s:
        return Cost(**memory, slower=None, part=None)
    grown = {name: value - best.time_s.get(name, 0.0) for name, value in estimate.time_s.items()}
    slower = 1 - best.iteration_s / estimate.iteration_s
    return Cost(**memory, slower=slower, part=max(grown, key=lambda name: grown[name]))
