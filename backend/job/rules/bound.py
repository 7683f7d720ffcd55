"""Declaration of a rule: the function and the engines that it applies to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backend.job.job import Job
from backend.job.model import ModelShape
from backend.job.presets import Gpu
from backend.job.problems import Problem, Severity
from backend.job.traits import EngineTraits

Rule = Callable[[Job, ModelShape, Gpu], Problem | None]
Scope = Callable[[EngineTraits], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundRule:
    """A rule and the engines that it applies to."""

    function: Rule
    binds: Scope


def registrar(rules: list[BoundRule]) -> Callable[[Scope], Callable[[Rule], Rule]]:
    """Return a decorator: `@rule(scope)` adds a function to `rules`, for the engines of that scope (scopes.py)."""

    def rule(scope: Scope) -> Callable[[Rule], Rule]:
        def register(function: Rule) -> Rule:
            rules.append(BoundRule(function=function, binds=scope))
            return function

        return register

    return rule


def largest(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `limit` that fits, or 1."""
    return next((number for number in range(limit, 1, -1) if fits(number)), 1)


def dividing(ranks: int, sizes: Mapping[str, tuple[int, int]]) -> dict[str, object]:
    """Return the edit after which the product of sizes divides the ranks. Each size, in turn, stays as large as it can.

    `sizes`: path -> (size, what else it must divide; 0: nothing).
    """
    edit: dict[str, object] = {}
    for path, (size, whole) in sizes.items():
        fitting = largest(size, lambda least, left=ranks, whole=whole: left % least == 0 and whole % least == 0)  # type: ignore[misc]
        ranks //= fitting
        if fitting != size:
            edit[path] = fitting
    return edit


def problem(
    code: str, field: str, severity: Severity = "error", *, edit: dict[str, object] | None = None, **values: object
) -> Problem:
    """Return a Problem whose values are the keyword arguments."""
    return Problem(code=code, field=field, severity=severity, values=values, edit=edit or {})
