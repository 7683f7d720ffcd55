"""Facts computed from all events of a run. Pure functions of its history, oldest first."""

from collections.abc import Iterable, Sequence

from backend.runs.records import Event
from backend.runs.states import ENDINGS, EventKind


def restarts_used(history: Iterable[Event]) -> int:
    """Return the number of automatic restarts since the launch, or since a user resumed the run.

    A restart after the end of an allocation (restart.ALLOCATION_ENDED) does not count.
    """
    count = 0
    for event in history:
        counts = event.kind is EventKind.RESTARTING and event.detail.get("counted", True)
        count = 0 if event.kind is EventKind.RESUMED else count + counts
    return count


def is_saving(history: Sequence[Event]) -> bool:
    """Return whether the stop of a run waits for a checkpoint."""
    began = next((event for event in reversed(history) if event.kind in ENDINGS), None)
    if began is None or began.kind is not EventKind.STOP_REQUESTED or not began.detail.get("save"):
        return False
    given_up = (EventKind.SAVE_TIMED_OUT, EventKind.STOP_FORCED)
    return not any(event.kind in given_up and event.seq > began.seq for event in history)
