"""The checks of a plan as the wizard runs them."""

from backend.engines import check_engine
from backend.job import rules
from backend.job.job import Job
from backend.job.problems import Problem


def check(job: Job) -> list[Problem]:
    """Return the problems that the Plan step lists: those of the rules, and those of what goes to the engine."""
    return [*rules.check(job), *check_engine(job)]


def identities(problems: list[Problem]) -> set[tuple[str, str]]:
    """Return (code, field) of each problem. Two keys of `extra` may have problems of one code."""
    return {(problem.code, problem.field) for problem in problems}
