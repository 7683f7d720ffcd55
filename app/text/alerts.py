"""Texts of alerts, which are computed from metrics of a run. For the page, the command line and messages."""

import time
from collections.abc import Mapping
from typing import Any

from app.text import render_problem, t
from backend.runs.records import Event, RunSnapshot, problem_from_json
from backend.runs.states import EventKind

ALERTS = (
    EventKind.LOSS_NOT_FINITE,
    EventKind.LOSS_ROSE,
    EventKind.GRAD_NORM_ROSE,
    EventKind.GRAD_NORM_NOT_FINITE,
    EventKind.DISK_LOW,
    EventKind.ALLOC_RETRIES,
    EventKind.BAD_RECORDS,
    EventKind.METRIC_ALERT,
    EventKind.LOSS_ZERO,
    EventKind.LABELS_MASKED,
    EventKind.METRIC_NAMES_FULL,
    EventKind.OUTSIDE_INTERVAL,
)
_FIGURES = ("value", "limit", "loss", "grad_norm", "usual", "free_gib", "checkpoint_gib")
_SHORT = ("measured", "low", "high")
_PLAIN = ("of_rank", "retries", "file", "count", "first", "why", "metric", "most")


def figures(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an alert's text. Figures have the format of the charts."""
    formatted = {name: f"{float(detail[name]):.4g}" for name in _FIGURES if name in detail}
    formatted |= {name: f"{float(detail[name]):.3g}" for name in _SHORT if name in detail}
    return {**formatted, **{name: detail[name] for name in _PLAIN if name in detail}}


def key(event: Event) -> str:
    """Return the end of the keys of an event's texts."""
    is_memory = event.kind is EventKind.OUTSIDE_INTERVAL and event.detail.get("figure") == "memory"
    return f"{event.kind.value}_memory" if is_memory else event.kind.value


def why(event: Event, lang: str) -> str:
    """Return the likely cause of an alert, and what to do; an empty text if the event names none."""
    problem = event.detail.get("problem")
    words = render_problem(lang, problem_from_json(problem)) if problem else {"message": "", "fix": ""}
    return f"{words['message']} {words['fix']}".strip()


def outside_words(run: RunSnapshot, lang: str) -> list[str]:
    """Return why the first steps of the newest attempt took other time or memory than planned, a line for each."""
    return [
        why(event, lang)
        for event in run.events
        if event.kind is EventKind.OUTSIDE_INTERVAL and event.attempt == run.attempt
    ]


def condition_words(detail: Mapping[str, Any], lang: str) -> str:
    """Return the condition of a rule in words; empty for an event without one."""
    return t(lang, f"monitor.rule.{detail['condition']}", **figures(detail)) if "condition" in detail else ""


def lines(run: RunSnapshot, lang: str) -> list[str]:
    """Return a line for the newest alert of each kind in the newest attempt, in order, and one for its likely cause.

    Alerts of unreadable records have a line for each file, those on metrics one for each rule, and those of first steps
    one for time and one for memory.
    """
    alerts = [event for event in run.events if event.kind in ALERTS and event.attempt == run.attempt]
    newest = {(key(event), *_file_key(event)): event for event in alerts}
    addresses = {node.rank: node.address for node in run.nodes}
    lines = []
    for event in sorted(newest.values(), key=lambda event: event.seq):
        at = time.strftime("%H:%M:%S", time.localtime(event.time))
        values = {"step": event.detail.get("step"), "node": addresses.get(event.rank or 0), **figures(event.detail)}
        values["condition"] = condition_words(event.detail, lang)
        words = t(lang, f"monitor.event.{key(event)}", **values)
        lines.append(f"{at} {words}")
        lines += [f"- {reason}" for reason in (why(event, lang),) if reason]
    return lines


def _file_key(event: Event) -> tuple[object, ...]:
    if event.kind is EventKind.METRIC_ALERT:
        return (event.detail.get("rule"),)
    return (event.rank, event.detail.get("file")) if event.kind is EventKind.BAD_RECORDS else ()
