"""Changes of a job that may remove the cause of a failed run (`edits` of the catalogue)."""

from collections.abc import Mapping
from typing import Any

from backend.job.job import Job
from backend.job.mapping import dump_job, get_value, load_job, with_values
from backend.job.problems import ProblemsError, errors
from backend.job.rules import check
from backend.planning import enumerate_plans, recommended
from backend.runs.diagnosis.cause_catalogue import by_code


def fixes(code: str, job: Job) -> list[Mapping[str, Any]]:
    """Return the changes (job path -> value) that the catalogue offers for a cause, as far as the rules allow them."""
    cause = by_code().get(code)
    changes = [_plan(job) if "plan" in edit else _change(edit, job) for edit in cause.edits] if cause else []
    return [change for change in changes if change and _is_allowed(with_values(job, change))]


def _plan(job: Job) -> Mapping[str, Any]:
    """Return what makes the job the recommended plan of its engine; empty if no plan fits or it has that plan."""
    try:
        plans = enumerate_plans(job, (job.engine,))
    except ProblemsError:  # the model or the engine has no estimate
        return {}
    rank = recommended(plans, 0)
    if rank is None or rank >= plans.fitting:
        return {}
    return {path: value for path, value in plans[rank].edits.items() if get_value(job, path) != value}


def _change(edit: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """Return path -> new value; empty if a value cannot be halved, or nothing would change."""
    old = {path: get_value(job, path) for names in ("half", "double") for path in edit.get(names, ())}
    if any(old[path] in (None, 0, 1) for path in edit.get("half", ())):
        return {}
    halved = {path: _half(old[path]) for path in edit.get("half", ())}
    doubled = {path: 2 * old[path] for path in edit.get("double", ()) if old[path] is not None}
    chosen = {path: value for path, value in edit.get("set", {}).items() if get_value(job, path) != value}
    return {**chosen, **halved, **doubled}


def _half(value: float) -> float:
    return value // 2 if isinstance(value, int) else value / 2


def _is_allowed(job: Job) -> bool:
    parsed, problems = load_job(dump_job(job))
    return parsed is not None and not errors([*problems, *check(parsed)])
