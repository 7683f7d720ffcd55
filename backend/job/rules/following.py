"""Extends the edits of problems, so that one click leaves no error that the edit itself brings."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from backend.job.job import Job
from backend.job.mapping import with_values
from backend.job.problems import Problem, errors

Check = Callable[[Job], list[Problem]]
Edit = Mapping[str, object]
Identity = tuple[str, str]
"""(code, field) of a problem."""

MOST_EDITS = 6
"""Edits that one click applies at most. A job of random keys needed four."""


def with_following_edits(job: Job, problems: Iterable[Problem], check: Check) -> list[Problem]:
    """Return the problems of a job, with each edit extended by the edits of the errors that it would bring.

    Another engine has other rules, and a value that suits one rule may break another. An edit is left out if it cannot
    be completed, because its error asks for the old value again: no precision suits both an old GPU and attention with
    sinks. An error without an edit may follow: only the user knows its value.

    `check` returns all problems of a job.
    """
    listed = list(problems)
    known = {_identity(problem) for problem in errors(listed)}

    def extended(problem: Problem) -> Problem:
        if not problem.edit and not problem.choices:
            return problem
        own = _identity(problem)
        choices = {name: _extended(job, edit, own, known, check) for name, edit in problem.choices.items()}
        return replace(
            problem,
            edit=_extended(job, problem.edit, own, known, check) if problem.edit else {},
            choices={name: edit for name, edit in choices.items() if edit},
        )

    return [extended(problem) for problem in listed]


def _identity(problem: Problem) -> Identity:
    """Return what tells a problem from the others of its job: several keys of `extra` may have the same code."""
    return problem.code, problem.field


def _extended(job: Job, edit: Edit, own: Identity, known: Collection[Identity], check: Check) -> Edit:
    """Return the edit with those of the errors that it brings; empty if the problem `own` stays or comes back."""
    known = {*known} - {own}
    seen: list[Edit] = []
    while edit not in seen and len(seen) < MOST_EDITS:
        seen.append(edit)
        problems = check(with_values(job, edit))
        brought = [error for error in errors(problems) if _identity(error) not in known]
        following = _first_edit(brought, edit)
        if not following:
            return {} if own in map(_identity, problems) else edit
        edit = {**edit, **following}
    return {}


def _first_edit(problems: Iterable[Problem], edit: Edit) -> Edit:
    """Return the first edit of these problems; one that leaves the values of `edit` comes before the others."""
    edits = [other for problem in problems for other in (problem.edit, *problem.choices.values()) if other]
    return min(edits, key=lambda other: bool((edit.keys() & other.keys()) - {"extra"}), default={})
