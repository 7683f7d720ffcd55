"""What the store holds and the page shows, as plain records. Times are epoch seconds (UTC)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from backend.job.problems import Problem, ProblemsError
from backend.runs.collect.node_records import Exit, Gpu, Stopped
from backend.runs.collect.node_records import Stuck as StuckProcess
from backend.runs.diagnosis.findings import Slowdown, Standstill
from backend.runs.states import EventKind, RunState


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that happened to a run; never changed, never removed."""

    seq: int
    """Grows over all runs; a cursor for `what is new`."""
    run: str
    attempt: int
    rank: int | None
    """Node rank; None when it concerns the whole run."""
    kind: EventKind
    time: float
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One optimizer step as one rank saw it; None where the engine did not tell."""

    seq: int
    """Grows over all runs; a cursor for `what is new`."""
    attempt: int
    rank: int
    """Global rank."""
    step: int
    time: float
    """By the node's clock."""
    total_steps: int | None = None
    step_s: float | None = None
    tokens: int | None = None
    loss: float | None = None
    """Logging steps only; may be NaN or infinite."""
    grad_norm: float | None = None
    learning_rate: float | None = None
    epoch: float | None = None
    allocated_gib: float | None = None
    """Peak allocated by torch on this rank's device."""
    reserved_gib: float | None = None
    """Peak reserved by torch on this rank's device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRecord:
    """One node of one attempt: where its run folder lies and how it ended."""

    rank: int
    address: str
    """What users know the node by: its address, with the port where that is not 22. One run at a time holds it."""
    folder: str
    python: str
    setup: str | None = None
    """A shell file on the node that is sourced before Python is called."""
    mark: str
    """Value of MEGABOARD_RUN in every process of the attempt on this node."""
    clock_offset_s: float = 0.0
    """The node's clock minus ours: measured at launch, and anew when one of them is set (clocks.py)."""
    exit: Exit | None = None
    """The supervisor's `exit` file; set once everything the node wrote has been collected."""
    stop: Stopped | None = None
    """The supervisor's newest answer to `stop`; `left` empty proves that no process of ours is left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSnapshot:
    """One node of the newest attempt, as the page shows it."""

    rank: int
    address: str
    state: str
    """pending, starting, running, unreachable, unseen, stopping, finished, failed, stopped or lost."""
    heartbeat_age_s: float | None = None
    """Since the newest heartbeat reached us."""
    gpus: tuple[Gpu, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict)
    """load1, memory_used_mib, memory_total_mib, disk_free_mib of the newest heartbeat."""
    members: int = 0
    """Processes of the run in the newest heartbeat; 0 once the node has ended."""
    stuck: tuple[StuckProcess, ...] = ()
    """Those of them that stand still (`stuck` of endings.write_exit), or that did so when the run stalled."""
    wrote: float | None = None
    """When its logs last grew, by our clock; None where the supervisor does not tell."""
    worked: tuple[tuple[int | None, float], ...] = ()
    """(global rank, when it was last at work by our clock); rank None is torchrun."""
    exit: Exit | None = None
    stop: Stopped | None = None


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
    """The newest that was logged; may be NaN or infinite."""
    eta_s: float | None = None
    """While it runs, at the pace of its newest steps."""
    stands_since: float | None = None
    """Since when it runs without progress, by our clock (hang.py)."""
    queue_place: int | None = None
    """1 is the next; None unless it waits in the queue."""
    has_begun: bool = True
    """Something was started on its nodes, in some attempt."""
    why: Problem | None = None
    """What it waits for, or why it failed or was lost."""


PreparingStage = Literal["starting", "reading", "converting", "tokenising", "saving"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparing:
    """What node 0 is doing to the data before the ranks start."""

    stage: PreparingStage
    done: int = 0
    """Samples."""
    total: int | None = None
    """Samples; None where it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Elapsed:
    """How long a run has been at work, without the pauses between its attempts."""

    done_s: float
    """Of the attempts that have ended."""
    since: float | None
    """When the one under way began."""

    def at(self, now: float) -> float:
        """Seconds until then."""
        return self.done_s + (0.0 if self.since is None else max(0.0, now - self.since))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSnapshot:
    """Everything about one run that a page tick needs, from the store alone."""

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
    """Steps left times the median of the recent steps; None unless running."""
    step_s: float | None
    """Median of the recent steps."""
    tokens_per_s: float | None
    """Of the whole gang, padding counted (progress.step_tokens)."""
    loss: float | None
    """The newest that was logged; may be NaN or infinite."""
    preparing: Preparing | None
    """How far node 0 is with the data; None unless the ranks wait for it."""
    cause: Problem | None
    """Why it failed or was lost, naming the node that was first."""
    unseen: tuple[Problem, ...] = ()
    """Faults of this server that keep it from looking at nodes; the run goes on."""
    nodes: tuple[NodeSnapshot, ...]
    events: tuple[Event, ...]
    """The newest ones, oldest first."""
    started: float | None = None
    """When it was first started on its nodes; before that it may have waited long."""
    elapsed: Elapsed | None = None
    """None before the first attempt."""
    last_step_at: float | None = None
    """When the newest step of the newest attempt ended, by our clock."""
    standstill: Standstill | None = None
    """None unless it runs and makes no progress."""
    slowdown: Slowdown | None = None
    """None unless it runs and its steps take longer than before."""
    checkpoint_step: int | None = None
    """Of the checkpoint that the newest attempt went on from."""
    source: tuple[str, int] | None = None
    """The other run, and the step of its checkpoint, that this one began with."""
    warnings: tuple[Problem, ...] = ()
    """Of the nodes' check, that nobody has accepted and that kept it from starting."""
    restarts: int = 0
    """Automatic restarts since the launch, or since a user resumed the run."""
    restarts_allowed: int = 0
    queue_place: int | None = None
    """1 is the next; None unless it waits in the queue."""
    not_before: float | None = None
    """When an automatic restart is due."""
    looked_at: float = 0.0
    """By our clock; ages are of that moment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The checkpoint of another run that a run begins with."""

    run: str
    step: int
    folder: str
    """The checkpoint's own, absolute on the nodes."""
    bound: tuple[str, ...] = ()
    """The parts of the other run's plan that it can be loaded with alone (engines/resharding.py)."""

    @classmethod
    def from_json(cls, text: str) -> "Source":
        """What `to_json` wrote."""
        values = json.loads(text)
        return cls(**{**values, "bound": tuple(values["bound"])})

    def to_json(self) -> str:
        """All of it as text."""
        return json.dumps(asdict(self))


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """A Problem as plain values that JSON keeps."""
    return json.loads(json.dumps(asdict(problem), default=str))  # type: ignore[no-any-return]


def problem_from_json(values: Mapping[str, Any]) -> Problem:
    """The Problem that `problem_to_json` wrote; keys of a newer version are dropped."""
    return Problem(**{key: values[key] for key in Problem.__dataclass_fields__ if key in values})


def stored_mapping(run: str, text: str) -> dict[str, Any]:
    """A mapping that the store keeps of a run as JSON; ProblemsError(run_unreadable)."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise unreadable(run, f"no JSON: {text[:60]!r}") from error
    if not isinstance(found, dict):
        raise unreadable(run, f"no mapping: {text[:60]!r}")
    return found


def unreadable(run: str, reason: str) -> ProblemsError:
    """For a run of which the store holds what nobody can read."""
    return ProblemsError([Problem(code="run_unreadable", values={"run": run, "reason": reason})])
