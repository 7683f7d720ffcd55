"""What the steps of a run tell that somebody should hear of, in words: for the page, the command line and messages."""

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
)
_FIGURES = ("loss", "grad_norm", "usual", "free_gib", "checkpoint_gib")
_PLAIN = ("of_rank", "retries", "file", "count", "first", "why")


def figures(detail: Mapping[str, Any]) -> dict[str, Any]:
    """The values of such an event; figures are formatted as in the charts."""
    written = {name: f"{float(detail[name]):.4g}" for name in _FIGURES if name in detail}
    return {**written, **{name: detail[name] for name in _PLAIN if name in detail}}


def lines(run: RunSnapshot, lang: str) -> list[str]:
    """The newest alert of each kind in the newest attempt, as lines of text, in order.

    For unreadable records: the newest alert of each file.
    """
    alerts = [one for one in run.events if one.kind in ALERTS and one.attempt == run.attempt]
    newest = {(one.kind, *_place(one)): one for one in alerts}
    addresses = {node.rank: node.address for node in run.nodes}
    found = []
    for event in sorted(newest.values(), key=lambda one: one.seq):
        at = time.strftime("%H:%M:%S", time.localtime(event.time))
        values = {"step": event.detail.get("step"), "node": addresses.get(event.rank or 0), **figures(event.detail)}
        words = t(lang, f"monitor.event.{event.kind.value}", **values)
        found.append(f"{at} {words}")
    return found


def _place(event: Event) -> tuple[object, ...]:
    return (event.rank, event.detail.get("file")) if event.kind is EventKind.BAD_RECORDS else ()
