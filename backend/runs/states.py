"""States of a run, and the table of transitions between them.

The state of a run is not stored: it is computed from its append-only events. In `stopping` the gang is being stopped,
because a user requested it, or because a node failed or was lost; the event that ends this state names the outcome.
In `queued` the run waits for its nodes: before the first attempt, after a resume, or before an automatic restart.
"""

from collections.abc import Iterable
from enum import StrEnum


class RunState(StrEnum):
    """State of a run."""

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
    """An external run that is monitored."""
    UNWATCHED = "unwatched"
    """An external run that is no longer monitored."""
    BROKEN = "broken"
    """The record in the store cannot be read. No event leads to this state."""

    @property
    def is_final(self) -> bool:
        """Return whether the run has ended and its nodes are free. Only a resume by a user changes this state."""
        return self in FINAL

    @property
    def can_resume(self) -> bool:
        """Return whether a user may start the next attempt."""
        return self in RESUMABLE


class EventKind(StrEnum):
    """Kinds of events of a run."""

    # these change the state
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
    # these do not
    SUBMITTED = "submitted"
    """A scheduler accepted the attempt. The run stays in `starting` until the scheduler gives it nodes."""
    SCHEDULER = "scheduler"
    """What the scheduler says of the attempt's job (records.Queued)."""
    NODE_STARTING = "node_starting"
    NODE_STARTED = "node_started"
    NODE_UNREACHABLE = "node_unreachable"
    NODE_UNSEEN = "node_unseen"
    """A fault of the server prevents it from reading the node: the state of the node is unknown."""
    NODE_REACHABLE = "node_reachable"
    NODE_EXITED = "node_exited"
    NODE_STOPPING = "node_stopping"
    NODE_STOPPED = "node_stopped"
    NODE_STOP_FAILED = "node_stop_failed"
    NODE_SILENT = "node_silent"
    NODE_STUCK = "node_stuck"
    NODE_SLOW = "node_slow"
    """All others wait for a node, and a spare is to replace it: the ranks are asked to save and to exit."""
    NODE_REPLACED = "node_replaced"
    """A spare takes the rank of a node from the next attempt on. `detail`: node, spare and the problem of the node."""
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
    GRAD_NORM_NOT_FINITE = "grad_norm_not_finite"
    """The gradient norm is not finite, and no loss scale explains it (grad_norms.py)."""
    DISK_LOW = "disk_low"
    METRIC_NAMES_FULL = "metric_names_full"
    """The run logs more names of metrics than the store keeps."""
    METRIC_ALERT = "metric_alert"
    """A rule of the operator on a metric came true (metric_alerts.py)."""
    LOSS_ZERO = "loss_zero"
    """The loss is exactly 0."""
    LABELS_MASKED = "labels_masked"
    """The first rows of the data have no label that is trained."""
    ALLOC_RETRIES = "alloc_retries"
    OUTSIDE_INTERVAL = "outside_interval"
    """The first steps of an attempt took other time or memory than the interval of its estimate (first_steps.py)."""
    BAD_RECORDS = "bad_records"
    CHECKPOINTS_SET_ASIDE = "checkpoints_set_aside"
    MESSAGE_FAILED = "message_failed"


RESUMABLE = frozenset({RunState.STOPPED, RunState.FAILED, RunState.LOST})
FINAL = RESUMABLE | {RunState.FINISHED, RunState.UNWATCHED}

ENDINGS = (EventKind.STOP_REQUESTED, EventKind.FAILING, EventKind.LOSING)
"""Events that start the stop of a gang."""

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
"""(state, event) -> next state. Other pairs do not change the state."""

MOVING = frozenset(kind for _, kind in TRANSITIONS)
"""Events that change the state. run_store.append does not record one that would not change it."""


def next_state(state: RunState | None, kind: EventKind) -> RunState | None:
    """Return the state after an event; the same state when the event does not change it."""
    return TRANSITIONS.get((state, kind), state)


def fold(kinds: Iterable[EventKind]) -> RunState | None:
    """Return the state after all events of a run, in order; None without events."""
    state: RunState | None = None
    for kind in kinds:
        state = next_state(state, kind)
    return state
