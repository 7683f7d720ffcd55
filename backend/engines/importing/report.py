"""What an import did with each key, and why."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from backend.job.problems import Problem

Outcome = Literal["kept", "renamed", "changed", "dropped", "passed_on", "default"]
"""kept: the job says the same. renamed: under another key of today's versions. changed: with another value. dropped:
not in the job. passed_on: in the job's `extra`, as it was. default: the file leaves it out, and what the engine then
takes is not what a new job starts with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportLine:
    """One key of the file."""

    key: str
    outcome: Outcome
    value: Any = None
    """What the file says; None for a secret, and for what it leaves out."""
    path: str | None = None
    """The job path that it went to."""
    became: Any = None
    """The value there."""
    reason: Problem | None = None
    """Why it is not simply kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A job file made of an engine's configuration."""

    mapping: Mapping[str, Any]
    """The job file's mapping; it can be read, but may still lack what a launch needs."""
    lines: tuple[ImportLine, ...]
    """In the order of the file; what it leaves out comes last."""


def because(code: str, key: str, **values: object) -> Problem:
    """The reason for a line."""
    return Problem(code=code, field=key, severity="note", values={"key": key, **values})


def with_outcome(line: ImportLine, outcome: Outcome, reason: Problem | None = None, **changes: Any) -> ImportLine:
    return dataclasses.replace(line, outcome=outcome, reason=reason, **changes)
