"""Why not TP=8 PP=3? The rule that refuses such plans, or what the best of them costs against the best of all."""

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
from backend.job.rules.batched import refuses
from backend.planning.compare import Cost, cost
from backend.planning.enumerate import enumerate_plans
from backend.planning.order import Array
from backend.planning.plans import Candidate, Plans
from backend.planning.space import ACCUMULATION, MICRO_BATCH, SIZES, divisors

TENSOR, PIPELINE, CONTEXT = "parallel.tensor", "parallel.pipeline", "parallel.context"
EXPERT_TENSOR = "parallel.expert_tensor"
WANTED, COPIES = "training.global_batch_size", "data_parallel"
NAMES: Mapping[str, str] = {
    "TP": TENSOR,
    "PP": PIPELINE,
    "VPP": "parallel.virtual_pipeline",
    "CP": CONTEXT,
    "EP": "parallel.expert",
    "ETP": EXPERT_TENSOR,
    "DP": COPIES,
    "MBS": MICRO_BATCH,
    "GA": ACCUMULATION,
}
SHORT: Mapping[str, str] = {path: name for name, path in NAMES.items()}
_FOLLOWING = (COPIES, ACCUMULATION)
"""What follows from the other sizes and the global batch."""
_NUMBER = re.compile(r"([A-Za-z]+)\s*[=:：＝]?\s*([+-]?\d+(?:\.\d+)?)")
_DIGITS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class WhyNot:
    """An answer: either `problems` and what is legal instead, or the best plan of that kind and its cost."""

    problems: tuple[Problem, ...] = ()
    """The rules that refuse every such plan; beside a plan, what they warn of."""
    best: Candidate | None = None
    """The best of those plans."""
    rank: int | None = None
    """Its place among all plans, from 0; None where it is not among those that are compared."""
    cost: Cost | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Where rules refuse it: what was asked about, as parse_sizes."""
    legal: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Where rules refuse it: for each size that was asked about, which ones plans have with the others."""
    nearest: Candidate | None = None
    """Where rules refuse it: the legal plan whose sizes are nearest."""


def parse_sizes(text: str) -> dict[str, int]:
    """`TP=8, PP=3` (also TP8 PP3) as job paths and sizes; DP and GA as COPIES and ACCUMULATION.

    Raises ProblemsError, one for each size: too_small, too_large, size_not_whole, size_twice; why_not_unreadable.
    """
    sizes: dict[str, int] = {}
    problems: list[Problem] = []
    for found in _NUMBER.finditer(text):
        name, number = found[1].upper(), found[2]
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
    """Why the best plan of the job does not have these sizes (of parse_sizes).

    Without a legal plan of theirs, the rules that refuse them where the sizes that are left open suit them best; a
    legal plan that enumeration leaves out, as TP across nodes, is computed. Raises as enumerate_plans.
    """
    plans = plans or enumerate_plans(job)
    if len(plans) and sizes.get(MICRO_BATCH, 1) not in plans.column(MICRO_BATCH):
        plans = _with_its_micro_batch(job, sizes, plans)
    ranks = np.flatnonzero(_having(plans, sizes))
    if not len(ranks):
        return _beyond_nodes(job, sizes, plans) or _refused(_problems(job, sizes, plans), sizes, plans)
    rank = int(ranks[0])
    return WhyNot(best=plans[rank], rank=rank, cost=cost(plans, rank))


def _with_its_micro_batch(
    job: Job, sizes: Mapping[str, int], plans: Plans, beyond: Mapping[str, int] | None = None
) -> Plans:
    """The plans of the same engines and global batch; the job's own micro-batch is always among them."""
    tried = with_values(job, {MICRO_BATCH: sizes.get(MICRO_BATCH, 1)})
    return enumerate_plans(tried, [space.job.engine for space in plans.spaces], plans.global_batch, beyond)


def _beyond_nodes(job: Job, sizes: Mapping[str, int], plans: Plans) -> WhyNot | None:
    """The best plan with a TP or ETP that is larger than a node; None where the sizes are no such, or not legal."""
    inside = divisors(job.cluster.gpus_per_node)
    beyond = {path: sizes[path] for path in (TENSOR, EXPERT_TENSOR) if sizes.get(path, 1) not in inside}
    if not beyond:
        return None
    found = _with_its_micro_batch(job, sizes, plans, beyond)
    ranks = np.flatnonzero(_having(found, sizes))
    if not len(ranks):
        return None
    best = found[int(ranks[0])]
    warned = tuple(one for one in best.warnings if one.severity == "warning" and one.field in sizes)
    return WhyNot(problems=warned, best=best, cost=_cost(best.estimate, plans))


def _having(plans: Plans, sizes: Mapping[str, int]) -> Array:
    """Which plans have these sizes."""
    chosen = _comparable(plans, sizes)
    for path, size in sizes.items():
        chosen &= _column(plans, path) == size
    return chosen


def _comparable(plans: Plans, asked: Iterable[str]) -> Array:
    """Which plans a question about these sizes means: Hugging Face engines have no parallel ones."""
    is_split = any(path.startswith("parallel.") for path in asked)
    meant = np.array([space.job.traits.is_megatron or not is_split for space in plans.spaces], bool)
    found: Array = meant[plans.engine]
    return found


def _column(plans: Plans, path: str) -> Array:
    """Every plan's size."""
    if path not in _FOLLOWING:
        return plans.column(path)
    together = plans.column(TENSOR) * plans.column(PIPELINE) * plans.column(CONTEXT)
    copies: Array = plans.job.world_size // together
    return copies if path == COPIES else plans.global_batch // (plans.column(MICRO_BATCH) * copies)


def _problems(job: Job, sizes: Mapping[str, int], plans: Plans) -> tuple[Problem, ...]:
    """What refuses every plan with these sizes."""
    chosen = {path: size for path, size in sizes.items() if path not in _FOLLOWING}
    if len(chosen) < len(sizes) and _having(plans, chosen).any():
        return (_no_plan_with(sizes, plans),)
    paths = {path for space in plans.spaces for path in space.place}
    tries = _tries(job, chosen, plans, sizes.get(COPIES))
    return min((_refusals(job, [one for one in found if refuses(one, paths)]) for found in tries), key=len)


def _no_plan_with(sizes: Mapping[str, int], plans: Plans) -> Problem:
    """DP and accumulation follow from what else is chosen: the others leave no such value."""
    following = [path for path in sizes if path in _FOLLOWING]
    asked = ", ".join(f"{SHORT[path]} = {sizes[path]}" for path in following)
    values = {"asked": asked, "ranks": plans.job.world_size, "batch": plans.global_batch}
    return Problem(code="size_follows", field=following[0], values=values)


def _refused(problems: tuple[Problem, ...], sizes: Mapping[str, int], plans: Plans) -> WhyNot:
    """The answer with what is legal instead."""
    legal = {}
    for path in sizes:
        chosen = _comparable(plans, sizes)
        for other, size in sizes.items():
            chosen &= (_column(plans, other) == size) | (other == path)
        legal[path] = tuple(np.unique(_column(plans, path)[chosen]).tolist())
    # Of micro-batches the table has powers of two alone, and so of accumulation.
    told = {path: found for path, found in legal.items() if found and path not in (MICRO_BATCH, ACCUMULATION)}
    return WhyNot(problems=problems, sizes=sizes, legal=told, nearest=_nearest(sizes, plans))


def _nearest(sizes: Mapping[str, int], plans: Plans) -> Candidate | None:
    """Of the plans whose sizes are the fewest doublings away the best."""
    ranks = np.flatnonzero(_comparable(plans, sizes))
    if not len(ranks):
        return None
    away = sum(np.abs(np.log2(_column(plans, path)[ranks] / size)) for path, size in sizes.items())
    return plans[int(ranks[np.argmin(away)])]


def _tries(job: Job, sizes: Mapping[str, int], plans: Plans, copies: int | None) -> Iterator[list[Problem]]:
    """What the rules say of the sizes with TP and PP that they leave open: the least split first.

    Where DP is asked about too, with those that make so many copies, if any do.

    Where a micro-batch is asked about, the most split first: fewer copies share the global batch.
    """
    engine = job.engine if job.traits.is_megatron else "llamafactory-megatron"
    fixed: dict[str, object] = {**{f"parallel.{name}": 1 for name in SIZES}, "engine": engine,
                                "parallel.pipeline_layout": None, WANTED: plans.global_batch, **sizes}  # fmt: skip
    world, shape, gpu = job.world_size, resolve_model(job.model), resolve_gpu(job.cluster)
    tensors = [sizes[TENSOR]] if TENSOR in sizes else divisors(job.cluster.gpus_per_node)
    pipelines = [sizes[PIPELINE]] if PIPELINE in sizes else [size for size in divisors(world) if size <= shape.layers]
    if sizes.get("parallel.virtual_pipeline", 1) > 1:
        pipelines = [size for size in pipelines if size > 1] or [1]
    opened = sorted(product(tensors, pipelines), key=prod, reverse=MICRO_BATCH in sizes)
    # What is left open must not be what is refused.
    split = sizes.get(CONTEXT, 1)
    opened = [pair for pair in opened if world % (prod(pair) * split) == 0] or opened
    opened = [pair for pair in opened if copies in (None, world // (prod(pair) * split))] or opened
    for tensor, pipeline in opened:
        tried = with_values(job, {**fixed, TENSOR: tensor, PIPELINE: pipeline})
        yield check_resolved(tried, shape, gpu)


def _refusals(job: Job, found: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems that refuse a plan, without those that follow from another, at the field that the user sees.

    If there is an error, only errors are returned.
    """
    refused = errors(found) or list(found)
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
