"""Working time of a run: its attempts, from their start on the nodes to their end, without the pauses between them."""

import sqlite3
from collections.abc import Iterable

from backend.runs.records import Elapsed, Event
from backend.runs.states import EventKind, RunState, next_state
from backend.runs.store import attempts

_AT_WORK = (RunState.STARTING, RunState.RUNNING, RunState.STOPPING, RunState.WATCHED)


def elapsed(connection: sqlite3.Connection, run: str, history: Iterable[Event]) -> Elapsed | None:
    """Return the working time; None before the first attempt. `history`: all events of the run."""
    done_s, since, state, has_begun = 0.0, None, None, False
    for event in history:
        state = next_state(state, event.kind)
        if event.kind in (EventKind.STARTING, EventKind.WATCHED):
            since, has_begun = event.time, True
        elif since is not None and state not in _AT_WORK:
            done_s += max(0.0, attempts.ended_at(connection, run, event.attempt, event.time) - since)
            since = None
    return Elapsed(done_s=done_s, since=since) if has_begun else None
