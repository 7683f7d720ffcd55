"""Texts about nodes that the server cannot monitor because of a fault on its side."""

from typing import Any

from app.text import render_problem, t
from app.text.alike import as_one, by_likeness
from backend.runs.records import RunSnapshot

MAX_LINES = 8


def unseen(run: RunSnapshot, lang: str) -> dict[str, Any] | None:
    """Return a title, a line for each fault with its nodes and its fix, and what happens next. None without a fault."""
    if not run.unseen:
        return None
    lists = by_likeness(run.unseen)
    problems = [render_problem(lang, as_one(some)) for some in lists[:MAX_LINES]]
    rest = sum(map(len, lists[MAX_LINES:]))
    return {
        "title": t(lang, "monitor.unseen.title", count=len(run.unseen), nodes=len(run.nodes)),
        "lines": [f"{problem['message']} {problem['fix']}" for problem in problems]
        + ([t(lang, "monitor.straggler.more", count=rest)] if rest else []),
        "fix": t(lang, "monitor.unseen.fix"),
    }


def lines(run: RunSnapshot, lang: str) -> list[str]:
    """Return the same as lines of text. Empty if the server can monitor every node."""
    texts = unseen(run, lang)
    return [] if texts is None else [texts["title"], *(f"- {line}" for line in texts["lines"]), texts["fix"]]
