"""Problems that differ only in their node, as one problem that names all nodes."""

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from backend.job.problems import Problem

OF_NODE = ("node", "address")
"""Values that name a node."""


def likeness(problem: Problem) -> Hashable:
    """Return a value that is equal for problems that differ only in their node."""
    field = re.sub(r"\[\d+\]", "", problem.field)  # cluster.hosts[3].address names a node too
    values = {name: str(value) for name, value in problem.values.items() if name not in OF_NODE}
    return problem.code, problem.severity, field, tuple(sorted(values.items()))


def by_likeness(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Return lists of problems that differ only in their node, in the order of their first ones."""
    lists: dict[Hashable, list[Problem]] = {}
    for problem in problems:
        lists.setdefault(likeness(problem), []).append(problem)
    return list(lists.values())


def as_one(problems: Sequence[Problem]) -> Problem:
    """Return one problem for problems that differ only in their node: its text names all nodes."""
    if len(problems) == 1:
        return problems[0]
    values = dict(problems[0].values)
    for name in OF_NODE:
        of_each = [problem.node if name == "node" else problem.values.get(name) for problem in problems]
        if names := list(dict.fromkeys(str(value) for value in of_each if value)):
            values[name] = ", ".join(names)
    return replace(problems[0], values=values)
