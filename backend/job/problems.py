"""What is wrong with a user's input, as data: a stable code, the field, and the values its words need.

The words stand in the catalogues: `problem.<code>` says what is wrong and why, `problem.<code>.fix` what to do.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]

QUOTED = 80
"""Characters of a wrong value that a message shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing to tell the user about one field."""

    code: str
    """Stable identifier; other programs read it."""
    field: str = ""
    """Dotted path in the job file; empty for the whole file."""
    severity: Severity = "error"
    """error: cannot go on. warning: can, but is probably not meant. note: good to know."""
    values: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """What the catalogue's placeholders stand for."""
    node: str | None = None
    """The node it was found on; None when it is about the job alone."""
    edit: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Job path -> value: the edit that removes the problem, where there is one."""
    choices: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    """Name -> edit, where there are several ways; `problem.<code>.<name>` says what each does."""


class ProblemsError(Exception):
    """An operation was refused; `problems` says why, at least one of them an error."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.field or 'job'}: {p.code} {dict(p.values)}" for p in self.problems))


def quoted(value: Any) -> str:
    """What a message shows of a value that was typed, as a file says it (null, true): its start, if it is a page."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}..."


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Those problems that stop the user."""
    return [problem for problem in problems if problem.severity == "error"]
