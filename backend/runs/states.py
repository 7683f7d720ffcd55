"""The states of a run and the one table that says which event leads from which to which.

A run's state is never stored: it is the fold of its append-only events. `stopping` means that the gang is being
ended, on a user's wish or because one node failed or was lost; the event that ends it names the outcome. `queued`
waits for its nodes: before the first attempt, after a user resumed the run, or before an automatic restart.
"""

from collections.abc import Iterable
from enum import StrEnum


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    PREFLIGHT = "preflight"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    LOST = "lost"
    WATCHED = "watched"
    """Somebody else's: only read."""
    UNWATCHED = "unwatched"
    """Not read any more, whatever became of it."""
    BROKEN = "broken"
    """What the store holds of it cannot be read; no events lead there."""

    @property
    def is_final(self) -> bool:
        """Nothing happens to the run unless a user resumes it; its nodes are free."""
        return self in FINAL

    @property
    def can_resume(self) -> bool:
        """A user may start the next attempt."""
        return self in RESUMABLE


class EventKind(StrEnum):
    """What can happen to a run."""

    # these move the state
    CREATED = "created"
    PREFLIGHT = "preflight"
    STARTING = "starting"
    STARTED = "started"
    STOP_REQUESTED = "stop_requested"
    FAILING = "failing"
    LOSING = "losing"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"
    RESTARTING = "restarting"
    WAITING = "waiting"
    RESUMED = "resumed"
    WATCHED = "watched"
    UNWATCHED = "unwatched"
    # these are told beside it
    NODE_STARTING = "node_starting"
    NODE_STARTED = "node_started"
    NODE_UNREACHABLE = "node_unreachable"
    NODE_UNSEEN = "node_unseen"
    """A fault on the server's side keeps it from reading the node: nothing is known of it."""
    NODE_REACHABLE = "node_reachable"
    NODE_EXITED = "node_exited"
    NODE_STOPPING = "node_stopping"
    NODE_STOPPED = "node_stopped"
    NODE_STOP_FAILED = "node_stop_failed"
    NODE_SILENT = "node_silent"
    NODE_STUCK = "node_stuck"
    FLIGHT_RECORDS = "flight_records"
    WARNINGS_PASSED = "warnings_passed"
    GPU_ERROR = "gpu_error"
    KERNEL_LOG_UNREAD = "kernel_log_unread"
    LOG_WITHHELD = "log_withheld"
    SAVE_ASKED = "save_asked"
    SAVE_TIMED_OUT = "save_timed_out"
    STOP_FORCED = "stop_forced"
    LOSS_NOT_FINITE = "loss_not_finite"
    LOSS_ROSE = "loss_rose"
    GRAD_NORM_ROSE = "grad_norm_rose"
    DISK_LOW = "disk_low"
    ALLOC_RETRIES = "alloc_retries"
    BAD_RECORDS = "bad_records"
    CHECKPOINTS_SET_ASIDE = "checkpoints_set_aside"
    MESSAGE_FAILED = "message_failed"


RESUMABLE = frozenset({RunState.STOPPED, RunState.FAILED, RunState.LOST})
FINAL = RESUMABLE | {RunState.FINISHED, RunState.UNWATCHED}

ENDINGS = (EventKind.STOP_REQUESTED, EventKind.FAILING, EventKind.LOSING)
"""What a gang is ended for."""

_UNDER_WAY = (RunState.QUEUED, RunState.PREFLIGHT, RunState.STARTING, RunState.RUNNING)
_ENDS = {
    EventKind.FINISHED: RunState.FINISHED,
    EventKind.STOPPED: RunState.STOPPED,
    EventKind.FAILED: RunState.FAILED,
    EventKind.LOST: RunState.LOST,
}

TRANSITIONS: dict[tuple[RunState | None, EventKind], RunState] = {
    (None, EventKind.CREATED): RunState.QUEUED,
    (RunState.QUEUED, EventKind.PREFLIGHT): RunState.PREFLIGHT,
    (RunState.PREFLIGHT, EventKind.STARTING): RunState.STARTING,
    (RunState.STARTING, EventKind.STARTED): RunState.RUNNING,
    **{(state, EventKind.STOP_REQUESTED): RunState.STOPPING for state in _UNDER_WAY},
    **{(state, EventKind.FAILING): RunState.STOPPING for state in _UNDER_WAY},
    (RunState.RUNNING, EventKind.LOSING): RunState.STOPPING,
    (RunState.STARTING, EventKind.LOSING): RunState.STOPPING,
    (RunState.RUNNING, EventKind.FINISHED): RunState.FINISHED,
    **{(RunState.STOPPING, kind): state for kind, state in _ENDS.items()},
    (RunState.STOPPING, EventKind.RESTARTING): RunState.QUEUED,
    (RunState.PREFLIGHT, EventKind.WAITING): RunState.QUEUED,
    **{(state, EventKind.RESUMED): RunState.QUEUED for state in RESUMABLE},
    (None, EventKind.WATCHED): RunState.WATCHED,
    (RunState.WATCHED, EventKind.UNWATCHED): RunState.UNWATCHED,
}
"""(state, event) -> next state. A pair that is not here does not move the state."""

MOVING = frozenset(kind for _, kind in TRANSITIONS)
"""The events that exist to move the state; recording one that would not is refused (ledger.append)."""


def next_state(state: RunState | None, kind: EventKind) -> RunState | None:
    """The state after `kind`; `state` itself when the event does not move it."""
    return TRANSITIONS.get((state, kind), state)


def fold(kinds: Iterable[EventKind]) -> RunState | None:
    """The state that a run's events, in their order, lead to; None before the first."""
    state: RunState | None = None
    for kind in kinds:
        state = next_state(state, kind)
    return state
