"""What a scheduler says of a run's job, in words."""

from collections.abc import Mapping
from typing import Any

from app.text import t


def scheduler_words(lang: str, detail: Mapping[str, Any]) -> str:
    """Return the job, its state, and why it waits, its place in the queue and its expected start, or its nodes."""
    return t(lang, "scheduler.job", job=detail.get("job"), state=detail.get("state")) + more_words(lang, detail)


def more_words(lang: str, detail: Mapping[str, Any]) -> str:
    """Return what follows the state of a job."""
    names: tuple[str, ...] = ("nodes", "reason")
    if detail.get("state") == "PENDING":
        names = ("reason", "position", "start")
    elif detail.get("state") in ("RUNNING", "COMPLETED"):
        names = ("nodes",)
    values = {name: detail.get(name) for name in ("reason", "position", "partition", "start", "nodes")}
    return "".join(t(lang, f"scheduler.{name}", **values) for name in names if values[name])
