"""What the steps of a run tell that somebody should hear of, in words: for the page, the command line and messages."""

import time
from collections.abc import Mapping
from typing import Any

from app.i18n import t
from backend.jobs.records import RunSnapshot
from backend.jobs.states import EventKind

ALERTS = (
    EventKind.LOSS_NOT_FINITE,
    EventKind.LOSS_ROSE,
    EventKind.GRAD_NORM_ROSE,
    EventKind.DISK_LOW,
    EventKind.ALLOC_RETRIES,
)
_FIGURES = ("loss", "grad_norm", "usual", "free_gib", "checkpoint_gib")
_COUNTS = ("of_rank", "retries")


def figures(detail: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that such an event tells, as the charts write them."""
    written = {name: f"{float(detail[name]):.4g}" for name in _FIGURES if name in detail}
    return {**written, **{name: detail[name] for name in _COUNTS if name in detail}}


def lines(run: RunSnapshot, lang: str) -> list[str]:
    """The newest alert of each kind in the newest attempt, as lines of text in their order."""
    newest = {one.kind: one for one in run.events if one.kind in ALERTS and one.attempt == run.attempt}
    addresses = {node.rank: node.address for node in run.nodes}
    found = []
    for event in sorted(newest.values(), key=lambda one: one.seq):
        at = time.strftime("%H:%M:%S", time.localtime(event.time))
        values = {"step": event.detail.get("step"), "node": addresses.get(event.rank or 0), **figures(event.detail)}
        words = t(lang, f"monitor.event.{event.kind.value}", **values)
        found.append(f"{at} {words}")
    return found
