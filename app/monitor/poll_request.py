"""A poll of a browser: the run that it shows, and the data that it already has. Every value is validated."""

from collections.abc import Mapping
from dataclasses import dataclass

MOST_COMPARED = 8
"""Runs side by side: as many as colours that can be told apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRequest:
    """The log that the browser shows, and the part that it has."""

    attempt: int | None = None
    """None: the newest attempt."""
    node: int = 0
    file: str | None = None
    """None, or a file that the node does not have: the node's first file."""
    end: int | None = None
    """Offset of the end of the browser's lines. None if it has no lines."""
    before: int | None = None
    """Requests the lines that end at this offset."""
    around: int | None = None
    """Requests the lines around this offset instead of the newest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UtilizationRequest:
    """The measure of the nodes that the browser shows over time, and the part that it has."""

    measure: str | None = None
    """None: the first known measure."""
    have: Mapping[int, tuple[int, ...]]
    """Node rank -> `have` of the newest answer about the node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveMarks:
    """The curves of a run that the browser has, in a view of several runs."""

    generation: int | None
    seq: int | None
    metrics: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PollRequest:
    """One poll of one tab."""

    run: str = ""
    """Empty for the list of runs."""
    versions: Mapping[str, str]
    """Section -> version that the browser shows."""
    generation: int | None = None
    seq: int | None = None
    """Cursor of the newest point the browser has."""
    log: LogRequest = LogRequest()
    utilization: UtilizationRequest | None = None
    """None: not requested."""
    storage: bool = False
    """Whether the browser shows the storage view."""
    erase: str | None = None
    """The run for which the deletion dialog is open."""
    detail: tuple[int, int] | None = None
    """First and last step of the requested detail."""
    axis: int | None = None
    """Newest step of the axes that the browser has; None: not requested."""
    step: int | None = None
    """The step whose line in the log is requested."""
    metrics: Mapping[str, tuple[int, int]]
    """Logged metric that the browser shows -> version and last step of the values it has."""
    compare: Mapping[str, CurveMarks]
    """The runs that the browser shows side by side, in their order."""
    metric: str = "loss"
    """The metric of the list's columns."""

    @classmethod
    def from_json(cls, value: object) -> "PollRequest":
        """Read the browser's mapping. A value of the wrong type counts as missing."""
        request = _mapping(value)
        points, log = _mapping(request.get("points")), _mapping(request.get("log"))
        versions = {key: version for key, version in _mapping(request.get("seen")).items() if isinstance(version, str)}
        return cls(
            run=_text(request.get("run")) or "",
            versions=versions,
            generation=_count(points.get("generation")),
            seq=_count(points.get("seq")),
            log=LogRequest(
                attempt=_count(log.get("attempt")),
                node=_count(log.get("node")) or 0,
                file=_text(log.get("file")),
                end=_count(log.get("end")),
                before=_count(log.get("before")),
                around=_count(log.get("around")),
            ),
            utilization=_utilization(request["usage"]) if "usage" in request else None,
            storage=request.get("storage") is True,
            erase=_text(request.get("erase")),
            detail=_steps(_mapping(request.get("detail"))),
            axis=_count(request.get("axis")),
            step=_count(request.get("step")),
            metrics=_metrics(_mapping(request.get("metrics"))),
            compare=_marks(_mapping(request.get("compare"))),
            metric=_text(request.get("metric")) or "loss",
        )


def _marks(request: Mapping[str, object]) -> dict[str, CurveMarks]:
    runs = {run: _mapping(value) for run, value in list(request.items())[:MOST_COMPARED]}
    return {run: _marks_of_run(_mapping(value.get("points")), value) for run, value in runs.items()}


def _marks_of_run(points: Mapping[str, object], value: Mapping[str, object]) -> CurveMarks:
    generation, seq = _count(points.get("generation")), _count(points.get("seq"))
    return CurveMarks(generation=generation, seq=seq, metrics=_metrics(_mapping(value.get("metrics"))))


def _utilization(value: object) -> UtilizationRequest:
    request = _mapping(value)
    marks = {rank: _counts(mark) for rank, mark in _mapping(request.get("have")).items()}
    have = {int(rank): mark for rank, mark in marks.items() if rank.isdecimal() and len(mark) == 3}
    return UtilizationRequest(measure=_text(request.get("measure")), have=have)


def _steps(request: Mapping[str, object]) -> tuple[int, int] | None:
    first, last = _count(request.get("first")), _count(request.get("last"))
    return None if first is None or last is None or first > last else (first, last)


def _metrics(request: Mapping[str, object]) -> dict[str, tuple[int, int]]:
    """Return name -> (version, last step); (-1, -1) for a name without values in the browser."""
    marks = {name: _counts(mark) for name, mark in request.items()}
    return {name: (mark[0], mark[1]) if len(mark) == 2 else (-1, -1) for name, mark in marks.items()}


def _counts(value: object) -> tuple[int, ...]:
    counts = [_count(count) for count in value] if isinstance(value, list) else []
    return tuple(count for count in counts if count is not None)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None
