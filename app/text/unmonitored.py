"""Texts about nodes that the server cannot monitor because of a fault on its side."""

from typing import Any

from app.text import render_problem, t
from backend.runs.records import RunSnapshot

MOST = 8
"""Named one by one."""


def unseen(run: RunSnapshot, lang: str) -> dict[str, Any] | None:
    """What the browser shows: a title, a line for each node with its fix, and what happens next. None without any."""
    if not run.unseen:
        return None
    shown = [render_problem(lang, problem) for problem in run.unseen[:MOST]]
    rest = len(run.unseen) - len(shown)
    return {
        "title": t(lang, "monitor.unseen.title", count=len(run.unseen), nodes=len(run.nodes)),
        "lines": [f"{one['message']} {one['fix']}" for one in shown]
        + ([t(lang, "monitor.slowdown.more", count=rest)] if rest else []),
        "fix": t(lang, "monitor.unseen.fix"),
    }


def lines(run: RunSnapshot, lang: str) -> list[str]:
    """The same as lines of text; empty while the server can monitor every node."""
    found = unseen(run, lang)
    return [] if found is None else [found["title"], *(f"- {line}" for line in found["lines"]), found["fix"]]
