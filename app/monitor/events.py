"""The events of a run in words. What many nodes do alike at the same time is one line."""

from collections.abc import Iterable, Mapping
from typing import Any

from app.text import render_problem, t
from app.text.alerts import figures
from backend.runs.api import gpu_error_words, stuck_words
from backend.runs.records import Event, RunSnapshot, problem_from_json
from backend.runs.states import EventKind

SHOWN = 50
ALIKE = 8
"""Nodes of a run in which each has lines of its own."""
NAMED = 3
"""Nodes that a line for several calls by their addresses."""

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
        EventKind.SAVE_TIMED_OUT,
        EventKind.LOSS_NOT_FINITE,
        EventKind.LOSS_ROSE,
        EventKind.GRAD_NORM_ROSE,
        EventKind.DISK_LOW,
        EventKind.ALLOC_RETRIES,
        EventKind.BAD_RECORDS,
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
    """The newest events in words, newest first; `seq`, of the first of a line, stays when the line grows."""
    addresses = {node.rank: node.address for node in run.nodes}
    lines = _alike(run.events) if len(addresses) > ALIKE else [[event] for event in run.events]
    unstarted = _unstarted(run.events)
    return [_line(line, addresses, unstarted, lang) for line in reversed(lines[-SHOWN:])]


def _unstarted(history: Iterable[Event]) -> set[int]:
    """The failures of checks: nothing was started, and nothing has to be ended."""
    found, kind = set(), None
    for event in history:
        if event.kind is EventKind.FAILING and kind is EventKind.PREFLIGHT:
            found.add(event.seq)
        kind = event.kind if event.kind in (EventKind.PREFLIGHT, EventKind.STARTING) else kind
    return found


def _alike(history: Iterable[Event]) -> list[list[Event]]:
    """The events by line: what nodes did alike, in whatever order, until something happened that was not routine."""
    lines: list[list[Event]] = []
    open_lines: dict[object, list[Event]] = {}
    for event in history:
        if event.kind not in _ROUTINE:
            open_lines.clear()
            lines.append([event])
            continue
        detail = event.detail
        like = (event.kind, event.attempt, detail.get("code"), detail.get("signal"), len(detail.get("left") or ()))
        if like not in open_lines:
            open_lines[like] = []
            lines.append(open_lines[like])
        open_lines[like].append(event)
    return lines


def _line(line: list[Event], addresses: Mapping[int, str], unstarted: set[int], lang: str) -> dict[str, Any]:
    first, newest = line[0], line[-1]
    ranks = sorted({event.rank for event in line if event.rank is not None})
    names = ", ".join(addresses.get(rank, str(rank)) for rank in ranks)
    who = names if len(ranks) <= NAMED else t(lang, "monitor.event.nodes", count=len(ranks))
    return {
        "seq": first.seq,
        "time": newest.time,
        "bad": newest.kind in _BAD,
        **_words(newest, who, newest.seq in unstarted, lang),
    }


def _words(event: Event, node: str, is_unstarted: bool, lang: str) -> dict[str, Any]:
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
        "steps": ", ".join(map(str, detail.get("steps") or ())),
        "xids": gpu_error_words(detail.get("xids") or ()),
        "reason": detail.get("reason"),
        "warnings": " ".join(_message(one, lang) for one in detail.get("warnings") or ()),
    }
    more = "_save" if event.kind is EventKind.STOP_REQUESTED and detail.get("save") else ""
    more = "_signal" if event.kind is EventKind.NODE_EXITED and detail.get("signal") else more
    more = "_unstarted" if is_unstarted else more
    problem = detail.get("problem")
    return {
        "text": t(lang, f"monitor.event.{event.kind.value}{more}", **values),
        "why": _message(problem, lang) if problem else "",
    }


def _message(problem: Mapping[str, Any], lang: str) -> str:
    return render_problem(lang, problem_from_json(problem))["message"]
