"""Events of a run in words. Equal events of many nodes at the same time are one line."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from app.text import render_problem, t, without_commands
from app.text.alerts import ALERTS, condition_words, figures, key, why
from app.text.alike import as_one, by_likeness, likeness
from app.text.scheduler import more_words
from backend.runs.api import gpu_error_words, stuck_words
from backend.runs.records import Event, RunSnapshot, problem_from_json
from backend.runs.states import EventKind

SHOWN = 50
ALIKE = 8
"""Maximum nodes of a run in which each node has its own lines."""
TOGETHER_S = 60.0
"""The same error of several nodes within this time is one line."""
NAMED = 3
"""Maximum nodes that a line of routine events names by their addresses. An error names all its nodes."""

_BAD = frozenset(
    {
        EventKind.FAILING,
        EventKind.LOSING,
        EventKind.FAILED,
        EventKind.LOST,
        EventKind.RESTARTING,
        EventKind.WAITING,
        EventKind.NODE_UNREACHABLE,
        EventKind.NODE_UNSEEN,
        EventKind.GPU_ERROR,
        EventKind.NODE_STOP_FAILED,
        EventKind.NODE_SILENT,
        EventKind.NODE_STUCK,
        EventKind.NODE_SLOW,
        EventKind.SAVE_TIMED_OUT,
        EventKind.LOSS_NOT_FINITE,
        EventKind.LOSS_ROSE,
        EventKind.GRAD_NORM_ROSE,
        EventKind.GRAD_NORM_NOT_FINITE,
        EventKind.DISK_LOW,
        EventKind.ALLOC_RETRIES,
        EventKind.OUTSIDE_INTERVAL,
        EventKind.BAD_RECORDS,
        EventKind.METRIC_ALERT,
        EventKind.LOSS_ZERO,
        EventKind.LABELS_MASKED,
        EventKind.METRIC_NAMES_FULL,
        EventKind.MESSAGE_FAILED,
    }
)


_ROUTINE = frozenset(
    {
        EventKind.NODE_STARTING,
        EventKind.NODE_STARTED,
        EventKind.NODE_STOPPING,
        EventKind.NODE_STOPPED,
        EventKind.NODE_EXITED,
    }
)


def events(run: RunSnapshot, lang: str) -> list[dict[str, Any]]:
    """Return the newest events in words, newest first. `seq` is of a line's first event, so that it stays the same."""
    addresses = {node.rank: node.address for node in run.nodes}
    lines = _alike(run.events, joins_routine=len(addresses) > ALIKE)
    unstarted = _unstarted(run.events)
    return [_line(line, addresses, unstarted, lang) for line in reversed(lines[-SHOWN:])]


def _unstarted(history: Iterable[Event]) -> set[int]:
    """Return the `seq` of failures of checks. Then nothing was started, and nothing must be stopped."""
    unstarted, kind = set(), None
    for event in history:
        if event.kind is EventKind.FAILING and kind is EventKind.PREFLIGHT:
            unstarted.add(event.seq)
        kind = event.kind if event.kind in (EventKind.PREFLIGHT, EventKind.STARTING) else kind
    return unstarted


def _alike(history: Iterable[Event], *, joins_routine: bool) -> list[list[Event]]:
    """Return the events by line. A line holds the same error of several nodes.

    `joins_routine`: a line also holds equal routine events of nodes, until an event that is not routine.
    """
    lines: list[list[Event]] = []
    open_lines: dict[object, list[Event]] = {}
    for event in history:
        if event.kind not in _ROUTINE:
            open_lines.clear()
        if event.kind not in _ROUTINE or not joins_routine:
            if lines and _repeats(event, lines[-1]):
                lines[-1].append(event)
            else:
                lines.append([event])
            continue
        detail = event.detail
        key = (event.kind, event.attempt, detail.get("code"), detail.get("signal"), len(detail.get("left") or ()))
        if key not in open_lines:
            open_lines[key] = []
            lines.append(open_lines[key])
        open_lines[key].append(event)
    return lines


def _repeats(event: Event, line: list[Event]) -> bool:
    """Return whether an event says of another node what the events of a line say of theirs."""
    first = line[0]
    if event.kind not in _BAD or (event.kind, event.attempt) != (first.kind, first.attempt):
        return False
    if event.time - first.time > TOGETHER_S:
        return False
    ranks = {other.rank for other in line}
    return None not in {event.rank, *ranks} and event.rank not in ranks and _likeness(event) == _likeness(first)


def _likeness(event: Event) -> Hashable:
    detail = {**event.detail}
    problem = detail.pop("problem", None)
    return repr(sorted(detail.items())), problem and likeness(problem_from_json(problem))


def _line(line: list[Event], addresses: Mapping[int, str], unstarted: set[int], lang: str) -> dict[str, Any]:
    first, newest = line[0], line[-1]
    ranks = sorted({event.rank for event in line if event.rank is not None})
    names = ", ".join(addresses.get(rank, str(rank)) for rank in ranks)
    is_named = len(ranks) <= NAMED or newest.kind in _BAD
    nodes = names if is_named else t(lang, "monitor.event.nodes", count=len(ranks))
    return {
        "seq": first.seq,
        "time": newest.time,
        "bad": newest.kind in _BAD and newest.detail.get("side") != "low",
        **_words(line, nodes, newest.seq in unstarted, lang),
    }


def _words(line: list[Event], node: str, is_unstarted: bool, lang: str) -> dict[str, Any]:
    event = line[-1]
    detail = event.detail
    values = {
        "node": node,
        "rank": event.rank,
        "step": detail.get("step"),
        "code": "–" if detail.get("code") is None else detail["code"],
        "signal": detail.get("signal"),
        "left": len(detail.get("left") or ()),
        "processes": stuck_words(detail.get("stuck") or ()),
        "files": ", ".join(detail.get("files") or ()),
        "number": detail.get("number"),
        "of": detail.get("of"),
        "to": detail.get("to"),
        **figures(detail),
        "condition": condition_words(detail, lang),
        "steps": ", ".join(map(str, detail.get("steps") or ())),
        "xids": gpu_error_words(detail.get("xids") or ()),
        "reason": detail.get("reason"),
        "job": detail.get("job"),
        "state": detail.get("state"),
        "more": more_words(lang, detail) if event.kind is EventKind.SCHEDULER else "",
        "spare": detail.get("spare"),
    }
    # What a node wrote must not be offered as a command.
    values = {name: without_commands(value) if isinstance(value, str) else value for name, value in values.items()}
    values["warnings"] = _messages(detail.get("warnings") or (), lang)
    variant = "_save" if event.kind is EventKind.STOP_REQUESTED and detail.get("save") else ""
    variant = "_signal" if event.kind is EventKind.NODE_EXITED and detail.get("signal") else variant
    variant = "_unstarted" if is_unstarted else variant
    variant = "_scheduler" if detail.get("counted") is False else variant
    problem = detail.get("problem")
    is_planned = event.kind is EventKind.FAILING and problem and str(problem.get("code")).startswith("node_slow_")
    variant = "_slow" if is_planned else variant
    return {
        "text": t(lang, f"monitor.event.{key(event)}{variant}", **values),
        "why": why(event, lang) if event.kind in ALERTS else _messages(_problems(line), lang),
    }


def _messages(problems: Iterable[Mapping[str, Any]], lang: str) -> str:
    lists = by_likeness(map(problem_from_json, problems))
    return " ".join(render_problem(lang, as_one(some))["message"] for some in lists)


def _problems(line: Iterable[Event]) -> list[Mapping[str, Any]]:
    return [event.detail["problem"] for event in line if event.detail.get("problem")]
