"""Results of the diagnosis of a gang that makes no progress (hang.py) or becomes slower (straggler.py)."""

from dataclasses import dataclass

from backend.runs.collect.node_records import Stuck as StuckProcess


@dataclass(frozen=True, kw_only=True, slots=True)
class Stuck:
    """A node on which processes of the run make no progress."""

    node: int
    processes: tuple[StuckProcess, ...]
    since: float
    """When this was detected, by our clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """A global rank whose newest step is before that of the others."""

    rank: int
    node: int
    step: int
    usual: int
    """The step of most ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """A node whose logs ended before those of most others."""

    node: int
    wrote: float
    """When its logs last grew, by our clock."""
    usual: float
    """When the logs of most nodes last grew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Working:
    """A global rank that works without its GPU while most ranks wait."""

    node: int
    rank: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """A GPU that is idle while the others are busy."""

    node: int
    gpu: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Hang:
    """A running gang makes no progress (hang.py). Nodes are node ranks, times by our clock."""

    since: float
    """The end of the newest step. Before the first step: when a process without progress was detected, or the nodes'
    start.
    """
    step: int | None
    """The newest step; None before the first."""
    step_s: float | None
    """The usual time of a step."""
    ends_at: float
    """When the supervisors end the run, unless something is written."""
    is_due: bool
    """A checkpoint or an evaluation is due after this step, and may be the reason for the delay."""
    wrote: float | None = None
    """When any log last grew."""
    stuck: tuple[Stuck, ...] = ()
    silent: tuple[int, ...] = ()
    """Nodes without a heartbeat."""
    behind: tuple[Behind, ...] = ()
    earlier: tuple[Earlier, ...] = ()
    working: tuple[Working, ...] = ()
    idle: tuple[Idle, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A GPU whose clock is limited, or slower than that of the others."""

    node: int
    gpu: int
    limit: str | None = None
    """The reason that the GPU reports: one of straggler.LIMITS."""
    clock_mhz: float | None = None
    usual_mhz: float | None = None
    """The median of all GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A node with a far higher load than the others."""

    node: int
    load: float
    usual: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """The steps of a gang take longer than before, and the GPUs and nodes that differ (straggler.py)."""

    since_step: int
    step_s: float
    """Median of the newest steps."""
    usual_s: float
    """Median of the steps before."""
    held: tuple[Held, ...] = ()
    loaded: tuple[Loaded, ...] = ()
    utilization: float | None = None
    """Mean of all GPUs in percent; None without GPUs."""
