"""Offer the fastest correct plan of an engine in place of a plan that the engine trains wrongly."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from app.text.plans import plan_name, plan_sizes
from backend.job.job import Job
from backend.job.mapping import get_value
from backend.job.problems import Problem, ProblemsError
from backend.job.rules.vision import TRAINED_WRONGLY
from backend.planning import Candidate, Plans, recommended


def with_correct_plan(job: Job, problems: Sequence[Problem], plans: Callable[[], Plans]) -> list[Problem]:
    """Return the problems. If the plan trains wrongly, the edit becomes a choice that names the new plan.

    If no plan of the engine fits, the rule's own edit stays. `plans` is called only when needed.
    """
    if not any(problem.code in TRAINED_WRONGLY for problem in problems):
        return list(problems)
    try:
        plan = _correct_plan(job, plans())
    except ProblemsError:  # no engine is modelled on this GPU
        plan = None
    return [_with_choice(problem, job, plan) if plan else problem for problem in problems]


def _correct_plan(job: Job, plans: Plans) -> Candidate | None:
    engines = [space.job.engine for space in plans.spaces]
    rank = recommended(plans, engines.index(job.engine)) if job.engine in engines else None
    return plans[rank] if rank is not None and rank < plans.fitting else None


def _with_choice(problem: Problem, job: Job, plan: Candidate) -> Problem:
    if problem.code not in TRAINED_WRONGLY:
        return problem
    edit = {path: value for path, value in plan.edits.items() if get_value(job, path) != value}
    values = {**problem.values, "plan": plan_name(plan_sizes(plan.job))}
    return replace(problem, values=values, edit={}, choices={"plan": edit, **problem.choices})
