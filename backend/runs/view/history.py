"""Facts computed from all events of a run. Pure functions of its history, oldest first."""

from collections.abc import Iterable, Sequence

from backend.runs.records import Event
from backend.runs.states import ENDINGS, EventKind


def restarts_used(history: Iterable[Event]) -> int:
    """Return the number of automatic restarts since the launch, or since a user resumed the run."""
    count = 0
    for event in history:
        count = 0 if event.kind is EventKind.RESUMED else count + (event.kind is EventKind.RESTARTING)
    return count


def is_saving(history: Sequence[Event]) -> bool:
    """Return whether the stop of a run waits for a checkpoint."""
    began = next((event for event in reversed(history) if event.kind in ENDINGS), None)
    if began is None or began.kind is not EventKind.STOP_REQUESTED or not began.detail.get("save"):
        return False
    given_up = (EventKind.SAVE_TIMED_OUT, EventKind.STOP_FORCED)
    return not any(event.kind in given_up and event.seq > began.seq for event in history)
