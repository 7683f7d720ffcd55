"""Texts of alerts, which are computed from metrics of a run. For the page, the command line and messages."""

import time
from collections.abc import Mapping
from typing import Any

from app.text import t
from backend.runs.records import Event, RunSnapshot
from backend.runs.states import EventKind

ALERTS = (
    EventKind.LOSS_NOT_FINITE,
    EventKind.LOSS_ROSE,
    EventKind.GRAD_NORM_ROSE,
    EventKind.DISK_LOW,
    EventKind.ALLOC_RETRIES,
    EventKind.BAD_RECORDS,
    EventKind.METRIC_NAMES_FULL,
)
_FIGURES = ("loss", "grad_norm", "usual", "free_gib", "checkpoint_gib")
_PLAIN = ("of_rank", "retries", "file", "count", "first", "why", "name", "most")


def figures(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an alert's text. Figures have the format of the charts."""
    formatted = {name: f"{float(detail[name]):.4g}" for name in _FIGURES if name in detail}
    return {**formatted, **{name: detail[name] for name in _PLAIN if name in detail}}


def lines(run: RunSnapshot, lang: str) -> list[str]:
    """Return a line for the newest alert of each kind in the newest attempt, in order.

    Alerts of unreadable records have a line for each file.
    """
    alerts = [event for event in run.events if event.kind in ALERTS and event.attempt == run.attempt]
    newest = {(event.kind, *_file_key(event)): event for event in alerts}
    addresses = {node.rank: node.address for node in run.nodes}
    lines = []
    for event in sorted(newest.values(), key=lambda event: event.seq):
        at = time.strftime("%H:%M:%S", time.localtime(event.time))
        values = {"step": event.detail.get("step"), "node": addresses.get(event.rank or 0), **figures(event.detail)}
        words = t(lang, f"monitor.event.{event.kind.value}", **values)
        lines.append(f"{at} {words}")
    return lines


def _file_key(event: Event) -> tuple[object, ...]:
    return (event.rank, event.detail.get("file")) if event.kind is EventKind.BAD_RECORDS else ()
