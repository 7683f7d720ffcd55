"""For a plan that its engine trains wrongly: the fastest plan of that engine that trains correctly and fits."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from app.text.plans import plan_name, plan_sizes
from backend.job.job import Job
from backend.job.mapping import get_value
from backend.job.problems import Problem, ProblemsError
from backend.job.rules.vision import TRAINED_WRONGLY
from backend.planning import Candidate, Plans, recommended


def with_right_plan(job: Job, problems: Sequence[Problem], plans: Callable[[], Plans]) -> list[Problem]:
    """The problems. If the plan trains wrongly, the edit becomes a choice that names the new plan.

    If no plan of the engine fits, the rule's own edit stays. `plans` is called only when needed.
    """
    if not any(problem.code in TRAINED_WRONGLY for problem in problems):
        return list(problems)
    try:
        found = _right_plan(job, plans())
    except ProblemsError:  # no engine is modelled on this GPU
        found = None
    return [_offering(problem, job, found) if found else problem for problem in problems]


def _right_plan(job: Job, plans: Plans) -> Candidate | None:
    engines = [space.job.engine for space in plans.spaces]
    rank = recommended(plans, engines.index(job.engine)) if job.engine in engines else None
    return plans[rank] if rank is not None and rank < plans.fitting else None


def _offering(problem: Problem, job: Job, found: Candidate) -> Problem:
    if problem.code not in TRAINED_WRONGLY:
        return problem
    edit = {path: value for path, value in found.edits.items() if get_value(job, path) != value}
    values = {**problem.values, "plan": plan_name(plan_sizes(found.job))}
    return replace(problem, values=values, edit={}, choices={"plan": edit, **problem.choices})
