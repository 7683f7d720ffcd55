"""Warnings of the preflight that an attempt may ignore because a user accepted them.

The events of the run store them: the warnings that were accepted at a launch, in the queue or at a resume (ANY, or the
keys of preflight.warning_key), and the warnings that each start ignored. An automatic restart ignores all warnings,
because it starts unattended, and records them.
"""

from collections.abc import Collection, Iterable

from backend.runs.launch.preflight import warning_key
from backend.runs.records import Event, problem_from_json
from backend.runs.states import EventKind

ANY = "any"
"""All warnings are accepted, for the one start that was requested with this value."""
_REQUESTS = (EventKind.CREATED, EventKind.RESUMED, EventKind.RESTARTING)


def to_stored(accepted: Collection[str] | None) -> str | list[str]:
    """Return the accepted keys as an event stores them; None: all are accepted."""
    return ANY if accepted is None else sorted(accepted)


def accepted_keys(history: Iterable[Event]) -> frozenset[str] | None:
    """Return the keys of the warnings that the next attempt may ignore; None: all."""
    keys: set[str] = set()
    stored: str | list[str] = ANY
    by_user = False
    for event in history:
        if event.kind in _REQUESTS:
            # Older versions ignored all warnings.
            stored = ANY if event.kind is EventKind.RESTARTING else event.detail.get("accepted", ANY)
            keys.update(() if isinstance(stored, str) else stored)
            by_user = event.kind is not EventKind.RESTARTING
        elif event.kind is EventKind.WARNINGS_PASSED and by_user:
            keys.update(warning_key(problem_from_json(warning)) for warning in event.detail["warnings"])
    return None if isinstance(stored, str) else frozenset(keys)
