"""Problems that differ only in their node, as one problem that names all nodes."""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from backend.job.problems import Problem


def likeness(problem: Problem) -> Hashable:
    """Return a value that is equal for problems that differ only in their node."""
    field = re.sub(r"\[\d+\]", "", problem.field)  # cluster.hosts[3].address names a node too
    values = {name: str(value) for name, value in problem.values.items() if name != "node"}
    return problem.code, problem.severity, field, tuple(sorted(values.items()))


def by_likeness(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Return lists of problems that differ only in their node, in the order of their first ones."""
    lists: dict[Hashable, list[Problem]] = {}
    for problem in problems:
        lists.setdefault(likeness(problem), []).append(problem)
    return list(lists.values())


def as_one(problems: Sequence[Problem]) -> Problem:
    """Return one problem for problems that differ only in their node: its text names all nodes."""
    nodes = list(dict.fromkeys(problem.node for problem in problems if problem.node))
    first = problems[0]
    return replace(first, values={**first.values, "node": ", ".join(nodes)}) if len(nodes) > 1 else first
