"""Record types of the store and of the page. Times are epoch seconds (UTC)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from backend.job.problems import Problem, ProblemsError
from backend.runs.collect.node_records import Exit, GpuOfBeat, Stopped
from backend.runs.collect.node_records import Stuck as StuckProcess
from backend.runs.diagnosis.findings import Hang, Straggler
from backend.runs.states import EventKind, RunState


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event of a run. Events are never changed or removed."""

    seq: int
    """Increases over all runs. A cursor for new records."""
    run: str
    attempt: int
    rank: int | None
    """Node rank; None for an event of the whole run."""
    kind: EventKind
    time: float
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One optimizer step of one rank; None for values that the engine does not report."""

    seq: int
    """Increases over all runs. A cursor for new records."""
    attempt: int
    rank: int
    """Global rank."""
    step: int
    time: float
    """By the node's clock."""
    total_steps: int | None = None
    step_s: float | None = None
    tokens: int | None = None
    log_offset: int | None = None
    """Size of the rank's log when the step was logged: its line in the log begins there."""
    loss: float | None = None
    """Of logging steps only; may be NaN or infinite."""
    grad_norm: float | None = None
    learning_rate: float | None = None
    epoch: float | None = None
    allocated_gib: float | None = None
    """Peak allocated by torch on this rank's device."""
    reserved_gib: float | None = None
    """Peak reserved by torch on this rank's device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRecord:
    """One node of one attempt: its run folder and how it ended."""

    rank: int
    address: str
    """Name of the node: its address, and the port unless it is 22. One run at a time holds a node."""
    folder: str
    python: str
    setup: str | None = None
    """A shell file on the node that is sourced before Python is called."""
    mark: str
    """Value of MEGABOARD_RUN in every process of the attempt on this node."""
    clock_offset_s: float = 0.0
    """The node's clock minus ours, measured at launch and after each clock change (clocks.py)."""
    exit: Exit | None = None
    """The supervisor's `exit` file. It is set after all other files of the node were read."""
    stop: Stopped | None = None
    """The supervisor's newest answer to `stop`. An empty `left` proves that no process of the run is left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSnapshot:
    """One node of the newest attempt, as the page shows it."""

    rank: int
    address: str
    state: str
    """pending, starting, running, unreachable, unseen, stopping, finished, failed, stopped or lost."""
    heartbeat_age_s: float | None = None
    """Time since the newest heartbeat arrived."""
    gpus: tuple[GpuOfBeat, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict)
    """load1, memory_used_mib, memory_total_mib, disk_free_mib of the newest heartbeat."""
    members: int = 0
    """Processes of the run in the newest heartbeat; 0 after the end of the node."""
    stuck: tuple[StuckProcess, ...] = ()
    """Processes without progress now, or when the run stalled (`stuck` of the exit record)."""
    wrote: float | None = None
    """When its logs last grew, by our clock; None when the supervisor does not report it."""
    worked: tuple[tuple[int | None, float], ...] = ()
    """(global rank, when it was last active by our clock); rank None is torchrun."""
    exit: Exit | None = None
    stop: Stopped | None = None

    @property
    def processes_left(self) -> int | None:
        """Return the number of processes left after the end or the stop. None if it was not checked."""
        record = self.stop if self.stop is not None else self.exit
        return None if record is None or "left" not in record else len(record["left"])


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLabels:
    """What the operator wrote about a run."""

    tags: tuple[str, ...] = ()
    note: str = ""
    is_hidden: bool = False
    """The list shows the run only when hidden runs are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """One line of the list of runs."""

    id: str
    name: str
    state: RunState
    created: float
    ended: float | None
    engine: str
    nodes: int
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    """The newest logged loss; may be NaN or infinite."""
    eta_s: float | None = None
    """Remaining time of a running run at the speed of its newest steps."""
    stands_since: float | None = None
    """Since when the run makes no progress, by our clock (hang.py)."""
    queue_place: int | None = None
    """Place in the queue, 1 is the next; None outside the queue."""
    has_begun: bool = True
    """At least one attempt was started on its nodes."""
    why: Problem | None = None
    """What the run waits for, or why it failed or was lost."""
    labels: RunLabels = RunLabels()


PreparingStage = Literal["starting", "reading", "converting", "tokenising", "saving"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparing:
    """Progress of the data preparation on node 0 before the ranks start."""

    stage: PreparingStage
    done: int = 0
    """Samples."""
    total: int | None = None
    """Samples; None when it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Elapsed:
    """Working time of a run, without the pauses between its attempts."""

    done_s: float
    """Time of the ended attempts."""
    since: float | None
    """Start of the current attempt."""

    def at(self, now: float) -> float:
        """Return the working time in seconds until `now`."""
        return self.done_s + (0.0 if self.since is None else max(0.0, now - self.since))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSnapshot:
    """Everything about one run that the page shows, from the store alone."""

    id: str
    name: str
    state: RunState
    created: float
    ended: float | None
    engine: str
    attempt: int
    step: int | None
    total_steps: int | None
    eta_s: float | None
    """Remaining steps times the median of the recent steps; None unless running."""
    step_s: float | None
    """Median of the recent steps."""
    tokens_per_s: float | None
    """Throughput of the whole gang, with padding (progress.step_tokens)."""
    loss: float | None
    """The newest logged loss; may be NaN or infinite."""
    preparing: Preparing | None
    """Progress of the data preparation; None unless the ranks wait for it."""
    cause: Problem | None
    """Why the run failed or was lost. It names the first node."""
    unseen: tuple[Problem, ...] = ()
    """Faults of this server that prevent it from reading nodes. The run continues."""
    nodes: tuple[NodeSnapshot, ...]
    events: tuple[Event, ...]
    """The newest events, oldest first."""
    started: float | None = None
    """When the run was first started on its nodes, after its time in the queue."""
    elapsed: Elapsed | None = None
    """None before the first attempt."""
    last_step_at: float | None = None
    """When the newest step of the newest attempt ended, by our clock."""
    standstill: Hang | None = None
    """Set while the run makes no progress."""
    slowdown: Straggler | None = None
    """Set while the steps of the run take longer than before."""
    checkpoint_step: int | None = None
    """Step of the checkpoint that the newest attempt resumed from."""
    source: tuple[str, int] | None = None
    """The other run and the step of its checkpoint that this run started from."""
    warnings: tuple[Problem, ...] = ()
    """Preflight warnings that nobody accepted and that prevented the start."""
    restarts: int = 0
    """Automatic restarts since the launch, or since a user resumed the run."""
    restarts_allowed: int = 0
    queue_place: int | None = None
    """Place in the queue, 1 is the next; None outside the queue."""
    not_before: float | None = None
    """When an automatic restart is due."""
    scheduler: Mapping[str, Any] | None = None
    """What the scheduler last said of the newest attempt's job: job, state, reason, position, partition, start, nodes.
    None for a run over SSH."""
    labels: RunLabels = RunLabels()
    looked_at: float = 0.0
    """Time of this snapshot by our clock. Ages refer to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StartCheckpoint:
    """The checkpoint of another run that a run starts from."""

    run: str
    step: int
    folder: str
    """Folder of the checkpoint, absolute on the nodes."""
    bound: tuple[str, ...] = ()
    """The fields of the other run's plan that a plan must share to load it (engines/resharding.py)."""

    @classmethod
    def from_json(cls, text: str) -> "StartCheckpoint":
        """Read the text of `to_json`."""
        values = json.loads(text)
        return cls(**{**values, "bound": tuple(values["bound"])})

    def to_json(self) -> str:
        """Return the checkpoint as JSON text."""
        return json.dumps(asdict(self))


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """Return a Problem as values that JSON can store."""
    return json.loads(json.dumps(asdict(problem), default=str))  # type: ignore[no-any-return]


def problem_from_json(values: Mapping[str, Any]) -> Problem:
    """Read a Problem of `problem_to_json`. Keys of a newer version are ignored."""
    return Problem(**{key: values[key] for key in Problem.__dataclass_fields__ if key in values})


def stored_mapping(run: str, text: str) -> dict[str, Any]:
    """Read a JSON mapping from the store. Raises ProblemsError(run_unreadable)."""
    try:
        mapping = json.loads(text)
    except ValueError as error:
        raise unreadable(run, f"no JSON: {text[:60]!r}") from error
    if not isinstance(mapping, dict):
        raise unreadable(run, f"no mapping: {text[:60]!r}")
    return mapping


def unreadable(run: str, reason: str) -> ProblemsError:
    """Return the error for a run whose record cannot be read."""
    return ProblemsError([Problem(code="run_unreadable", values={"run": run, "reason": reason})])
