"""The report of an import: its result for each key, and the reason."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from backend.job.problems import Problem, ProblemsError

Outcome = Literal["kept", "renamed", "changed", "dropped", "passed_on", "default"]
"""Results of a key:

- kept: the job has the same value.
- renamed: the job has the value under the current name of the key.
- changed: the job has another value.
- dropped: the job does not have the key.
- passed_on: the job's `extra` has the key unchanged.
- default: the file lacks the key, and the engine's default differs from that of a new job.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportLine:
    """One key of the file."""

    key: str
    outcome: Outcome
    value: Any = None
    """Value in the file; None for a secret and for a missing key."""
    path: str | None = None
    """Job path of the value."""
    became: Any = None
    """Value at that path."""
    reason: Problem | None = None
    """Why the key is not simply kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A job file from an engine's configuration."""

    mapping: Mapping[str, Any]
    """The job file's mapping. It can be read, but may lack what a launch needs."""
    lines: tuple[ImportLine, ...]
    """In the order of the file, then the keys that it lacks."""


def because(code: str, key: str, **values: object) -> Problem:
    """Return the reason for a line."""
    return Problem(code=code, field=key, severity="note", values={"key": key, **values})


def refused(code: str, key: str, **values: object) -> ProblemsError:
    """Return the error of a configuration that no engine can train."""
    return ProblemsError([Problem(code=code, field=key, values={"key": key, **values})])


def with_outcome(line: ImportLine, outcome: Outcome, reason: Problem | None = None, **changes: Any) -> ImportLine:
    return dataclasses.replace(line, outcome=outcome, reason=reason, **changes)
