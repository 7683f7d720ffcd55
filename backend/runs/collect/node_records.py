"""Types and readers of every record that a node writes for a run.

Only this module reads these records: lines of heartbeats and steps, the exit, the answers of the supervisor, and the
same records from the store, where an older server may have stored them unchecked. So its users need no own checks.
cluster/typed_json.py describes which parts of a wrong record are left out. cluster/program_answers has the answers
of programs that belong to no run.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Required, TypedDict, TypeVar, cast

from backend.cluster.node_json import parse_node_json
from backend.cluster.typed_json import (
    AnyFloat,
    Between,
    Count,
    Epoch,
    Like,
    Longest,
    Share,
    Size,
    Strict,
    read,
    read_or_none,
    shown,
)
from backend.runs.states import EventKind

T = TypeVar("T")

UNREADABLE = "unreadable"
"""Reason of an unreadable exit: how the node ended is not known."""

Word = Annotated[str, Longest(64)]
Line = Annotated[str, Longest(300)]
Mib = Annotated[float, Between(0.0, 1e9)]
Seconds = Annotated[float, Between(0.0, 1e9)]
Gib = Annotated[float, Between(0.0, 1e6)]
Index = Annotated[int, Between(0, 4095)]
"""Index of a GPU."""
Rank = Annotated[int, Between(0, 1 << 24)]
Process = tuple[Count, Word, Word]
"""Id, name and state of a process."""
Stuck = tuple[Count, Word, Word, Rank | None]
"""Id, name, state, and the rank if the supervisor reports it."""
Processes = Annotated[list[Process], Longest(1 << 16), Strict]
"""The processes that are left after a stop. The check is strict: an unreadable entry must not count as no process."""


StepNumber = Annotated[int, Between(0, 10**9)]
"""Number of a step, or of all steps."""


MetricName = Annotated[str, Like(r"\w.{0,99}")]
"""The name under which a training logs a number: printable, and begins with a letter, a digit or `_`."""
Metrics = Annotated[dict[MetricName, Annotated[float, AnyFloat]], Longest(512)]
"""Every number that the training logged at a step."""


class GpuOfBeat(TypedDict, total=False):
    """A GPU in a heartbeat, as nvidia-smi reports it."""

    index: Required[Index]
    utilization: Share
    memory_used_mib: Mib
    memory_total_mib: Mib
    power_w: Annotated[float, Between(0.0, 1e5)]
    temperature_c: Annotated[float, Between(-100.0, 300.0)]
    clock_mhz: Annotated[float, Between(0.0, 1e5)]
    clock_limits: Annotated[int, Between(0, 1 << 62)]
    """Bits of nvml.h's nvmlClocksEventReasons."""


class Gpus(TypedDict, total=False):
    """A heartbeat of which only the GPUs are read."""

    gpus: Annotated[list[GpuOfBeat], Longest(1024)]


class Beat(Gpus, total=False):
    """The content of a heartbeat besides its time."""

    members: Annotated[int, Size]
    """Number of the run's processes on the node; the line names them."""
    stuck: Annotated[list[Stuck], Longest(1024)]
    wrote: Epoch
    worked: list[tuple[Rank | None, Epoch]]
    load1: Annotated[float, Between(0.0, 1e6)]
    memory_used_mib: Mib
    memory_total_mib: Mib
    disk_free_mib: Annotated[float, Between(0.0, 1e15)]


class Heartbeat(Beat, total=False):
    """A line of heartbeat.jsonl."""

    time: Required[Epoch]
    masked: Annotated[dict[str, Count], Longest(1 << 13)]
    """Log -> offset up to which its secrets are masked. A run without secrets has none."""


class Step(TypedDict, total=False):
    """A line of steps.rank<k>.jsonl: one optimizer step of one rank, or numbers that were logged after its line."""

    step: Required[StepNumber]
    time: Required[Epoch]
    total_steps: StepNumber
    step_s: Seconds
    tokens: Count
    loss: Annotated[float, AnyFloat]
    grad_norm: Annotated[float, AnyFloat]
    learning_rate: Annotated[float, Between(-1e6, 1e6)]
    epoch: Seconds
    allocated_gib: Gib
    reserved_gib: Gib
    token_per_sec_per_gpu: Annotated[float, Between(0.0, 1e12)]
    alloc_retries: Count
    checkpoint_bytes: Annotated[int, Between(0, 1 << 62)]
    free_bytes: Annotated[int, Between(0, 1 << 62)]
    results_inode: Annotated[int, Between(0, 1 << 64)]
    metrics: Metrics
    log_offset: Annotated[int, Between(0, 1 << 62)]
    """Size of the rank's log when the step was logged."""
    masked_rows: tuple[Count, Count]
    """Rows of the training data whose labels are all masked, and rows that were read, in the first line of rank 0."""


class TrainerLine(TypedDict, total=False):
    """A line of LLaMA-Factory's trainer_log.jsonl."""

    current_steps: Required[StepNumber]
    metrics: Metrics
    """Its other numbers (external_logs.with_metrics)."""
    total_steps: StepNumber
    loss: Annotated[float, AnyFloat]
    lr: Annotated[float, Between(-1e6, 1e6)]
    epoch: Seconds
    elapsed_time: Word
    total_tokens: Count


class MegatronLine(TypedDict, total=False):
    """The values of a step in a line of Megatron's log."""

    step: Required[StepNumber]
    total_steps: StepNumber
    step_s: Seconds
    loss: Annotated[float, AnyFloat]
    grad_norm: Annotated[float, AnyFloat]
    learning_rate: Annotated[float, Between(-1e6, 1e6)]
    metrics: Metrics


class Xid(TypedDict, total=False):
    """An error of a GPU in the kernel log (supervisor/kernel_log.py)."""

    pci: Required[Word]
    xid: Required[Count]
    time: Required[Epoch]
    gpu: Index
    count: Count
    text: Line


class KernelLog(TypedDict, total=False):
    """The errors of GPUs in the kernel log."""

    xids: Annotated[list[Xid], Longest(64)]
    unread: Line


class Exit(TypedDict, total=False):
    """How a node ended (supervisor/endings.py). `left` is missing if it could not be read."""

    code: Annotated[int, Between(0, 255)] | None
    signal: Annotated[int, Between(1, 128)]
    stopped: bool
    reason: Word
    left: Processes
    disk_full: bool
    time: Epoch
    stuck: Annotated[list[Stuck], Longest(1024)]
    gpus: Annotated[list[tuple[Index, Mib, Mib]], Longest(1024)]
    """Index, MiB in use at the start of the run, and MiB in use after its end."""
    oom_kills: Annotated[int, Between(0, 1 << 20)]
    """Processes that the kernel killed because memory ran out."""
    gone: Word
    kernel_log: KernelLog
    unreadable: bool
    """Set by this module: neither the end of the node nor its remaining processes are known."""


class Stopped(TypedDict, total=False):
    """The supervisor's answer to `stop`."""

    left: Required[Processes]
    exit: Exit
    started: bool
    """False when nothing was started on the node."""


class Status(TypedDict, total=False):
    """The supervisor's answer to `status`."""

    supervisor: Required[bool]
    rebooted: bool
    exit: Exit


class Holder(TypedDict, total=False):
    """The holder of a node."""

    run: Line


class Started(TypedDict, total=False):
    """The supervisor's answer to `start`."""

    ok: Required[bool]
    reason: Word
    detail: Line
    holder: Holder
    pid: Count
    start: Count
    boot: Word
    mark: Word


class _Left(TypedDict, total=False):
    left: Processes


class _Stuck(TypedDict, total=False):
    stuck: Annotated[list[Stuck], Longest(1024)]


class _Xids(TypedDict, total=False):
    xids: Annotated[list[Xid], Longest(64)]


class _Reason(TypedDict, total=False):
    reason: Line


_EVENTS: Mapping[EventKind, Any] = {
    EventKind.NODE_STARTED: Started,
    EventKind.NODE_STUCK: _Stuck,
    EventKind.NODE_EXITED: Exit,
    EventKind.NODE_STOPPED: _Left,
    EventKind.GPU_ERROR: _Xids,
    EventKind.KERNEL_LOG_UNREAD: _Reason,
}
"""The events whose detail is a record of a node."""


class Bad(NamedTuple):
    """Number of records of one file that were wrong, in whole or in part, and the first of them."""

    number: int = 0
    first: str = ""
    """Its start, in printable ASCII."""
    why: str = ""
    """The reason why it is wrong."""


class ReadLines(NamedTuple):
    """The records of complete lines, and the count of wrong ones."""

    rows: Sequence[Any]
    bad: Bad


def read_lines(data: bytes, shape: Any, prepare: Callable[[Any], Any] = lambda value: value) -> ReadLines:
    """Return the records in lines of JSON. Wrong lines and fields are left out and counted.

    `prepare` changes the value of a line before it is read.
    """
    rows, count, first, why = [], 0, "", ""
    for line in data.splitlines():
        faults: list[str] = []
        record = None
        try:
            record, faults = read(shape, prepare(parse_node_json(line, any_number=True)))
        except ValueError as error:
            faults = [f"no JSON: {error}"] if line.strip() else []
        if record is not None:
            rows.append(record)
        if faults:
            count += 1
            first, why = (first, why) if first else (shown_line(line), faults[0][:200])
    return ReadLines(rows, Bad(count, first, why))


def shown_line(line: bytes) -> str:
    """Return the start of a line in printable ASCII."""
    text = ascii(line[:120].decode(errors="replace"))[1:-1]
    return f"{text[:160]}..." if len(line) > 120 or len(text) > 160 else text


def stuck_words(stuck: Sequence[Stuck]) -> str:
    """Return `rank 3: python3 1234 (T)` for each process without progress. Older supervisors report no rank."""
    return ", ".join(f"{_of_rank(rank)}{name} {pid} ({state})" for pid, name, state, rank in stuck)


def _of_rank(rank: int | None) -> str:
    return "" if rank is None else f"rank {rank}: "


def read_exit(data: bytes, now: float) -> tuple[Exit, Bad]:
    """Return a node's exit record, which always ends the node. `now` (the node's clock) is used if it has no time."""
    try:
        value = parse_node_json(data, any_number=True)
        exit_record, faults = exit_of(value), read(Exit, value)[1]
    except ValueError as error:
        exit_record, faults = _unreadable({}), [str(error)]
    if exit_record.get("unreadable") and not faults:
        faults = [f"code is missing in {shown(value)}"]
    return cast(Exit, {"time": now, **exit_record}), Bad(1, shown_line(data), faults[0][:200]) if faults else Bad()


def exit_of(value: object) -> Exit:
    """Return the exit record of parsed JSON. It is unreadable unless it has the kind of end and the processes that are
    left.
    """
    exit_record = read_or_none(Exit, value) or {}
    values = cast(Mapping[str, Any], value if isinstance(value, dict) else {})
    is_whole = "code" in values and all(key in exit_record for key in _CRUCIAL if values.get(key) is not None)
    return exit_record if is_whole and not exit_record.get("unreadable") else _unreadable(exit_record)


_CRUCIAL = ("code", "stopped", "left")


def _unreadable(exit_record: Exit) -> Exit:
    other_fields = {key: value for key, value in exit_record.items() if key not in (*_CRUCIAL, "signal")}
    return cast(Exit, {**other_fields, "stopped": False, "reason": UNREADABLE, "unreadable": True})


def stored_exit(text: str | None) -> Exit | None:
    """Return an exit from the store; None if there is none."""
    if text is None:
        return None
    try:
        return exit_of(parse_node_json(text, any_number=True))
    except ValueError:
        return _unreadable({})


def stored(shape: type[T], text: str | None) -> T | None:
    """Return another record from the store; None if there is no readable one."""
    try:
        return None if text is None else read_or_none(shape, parse_node_json(text, any_number=True))
    except ValueError:
        return None


def event_detail(kind: EventKind, detail: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an event's detail with its node records checked, because an older server stored them unchecked."""
    shape = _EVENTS.get(kind)
    return detail if shape is None else read_or_none(shape, detail) or {}
