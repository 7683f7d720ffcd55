"""Problems of a user's input as data: a stable code, the field, and the values of its text.

The catalogues have the texts: `problem.<code>` says what is wrong and why, `problem.<code>.fix` what to do.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]

QUOTED = 80
"""Limit on the characters of a wrong value that a message shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One problem of one field."""

    code: str
    """Stable identifier; other programs read it."""
    field: str = ""
    """Dotted path in the job file; empty for the whole file."""
    severity: Severity = "error"
    """error: the user cannot continue. warning: the value is probably a mistake. note: information."""
    values: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Values of the catalogue's placeholders."""
    node: str | None = None
    """The node with the problem; None if it is about the job alone."""
    edit: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Job path -> value: the edit that removes the problem, if there is one."""
    choices: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    """Name -> edit, if there are several ways. `problem.<code>.<name>` says what each does."""


class ProblemsError(Exception):
    """A refused operation; `problems` says why. At least one of them is an error."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.field or 'job'}: {p.code} {dict(p.values)}" for p in self.problems))


def quoted(value: Any) -> str:
    """Return a typed value as a file writes it (null, true), for a message; only its start if it is long."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}..."


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that stop the user."""
    return [problem for problem in problems if problem.severity == "error"]
