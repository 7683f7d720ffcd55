"""What is told of a gang that stands still (hang.py) or slows (straggler.py), as data."""

from dataclasses import dataclass

from backend.runs.collect.node_records import Stuck as StuckProcess


@dataclass(frozen=True, kw_only=True, slots=True)
class Stuck:
    """A node on which processes of the run stand still."""

    node: int
    processes: tuple[StuckProcess, ...]
    since: float
    """When it was seen, by our clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """A global rank whose newest step lies before that of the others."""

    rank: int
    node: int
    step: int
    usual: int
    """The step where most are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """A node whose logs ended before those of most others."""

    node: int
    wrote: float
    """When they last grew, by our clock."""
    usual: float
    """When most did."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Working:
    """A global rank that is at work without its GPU while most wait."""

    node: int
    rank: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """A GPU that does nothing while the others are busy."""

    node: int
    gpu: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Standstill:
    """A running gang makes no progress (hang.py). Nodes are node ranks, times by our clock."""

    since: float
    """The end of the newest step; before the first, when a process was seen to stand still, or the nodes' start."""
    step: int | None
    """The newest; None before the first."""
    step_s: float | None
    """What is usual."""
    ends_at: float
    """When the supervisors end it, unless something is written."""
    is_due: bool
    """After this step a checkpoint or an evaluation is due, and for all that is known it may be what takes so long."""
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
    """A GPU whose clock something holds down, or that is slower than the others."""

    node: int
    gpu: int
    limit: str | None = None
    """Why, as the GPU says: one of slowdown.LIMITS."""
    clock_mhz: float | None = None
    usual_mhz: float | None = None
    """The median of all GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A node on which far more runs than on the others."""

    node: int
    load: float
    usual: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Slowdown:
    """The steps of a gang take longer than they did (straggler.py)."""

    since_step: int
    step_s: float
    """Median of the newest steps."""
    usual_s: float
    """Median of those before."""
    held: tuple[Held, ...] = ()
    loaded: tuple[Loaded, ...] = ()
    utilization: float | None = None
    """Mean of all GPUs in percent; None where there are none."""
