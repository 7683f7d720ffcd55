"""A gang whose steps take longer than they did, in words: for the page, the command line and messages."""

from collections.abc import Sequence
from typing import Any

from app.text import t
from backend.runs.api import Held, Loaded
from backend.runs.records import RunSnapshot

MOST = 8
"""Named one by one."""
IDLE_PERCENT = 60
"""GPUs that work less than this on average wait for something."""


def slowdown(run: RunSnapshot, lang: str) -> dict[str, Any] | None:
    """What the browser shows: a title, a line for each that differs, and what to do. None while nothing is slower."""
    found = run.slowdown
    if found is None:
        return None
    addresses = {node.rank: f"{node.rank} · {node.address}" for node in run.nodes}
    lines = [_held(one, addresses, lang) for one in found.held] + [
        _loaded(one, addresses, lang) for one in found.loaded
    ]
    if not lines:
        idle = found.utilization is not None and found.utilization < IDLE_PERCENT
        lines = [
            t(lang, "monitor.slowdown.idle" if idle else "monitor.slowdown.none", percent=_round(found.utilization))
        ]
    return {
        "title": t(
            lang,
            "monitor.slowdown.title",
            step=f"{found.since_step:,}",
            now=f"{found.step_s:.3g}",
            usual=f"{found.usual_s:.3g}",
            percent=round(100 * (found.step_s / found.usual_s - 1)),
        ),
        "lines": _few(lines, lang),
        "fix": t(lang, "monitor.slowdown.fix.node" if found.held or found.loaded else "monitor.slowdown.fix"),
    }


def lines(run: RunSnapshot, lang: str) -> list[str]:
    """The same as lines of text; empty while nothing is slower."""
    found = slowdown(run, lang)
    return [] if found is None else [found["title"], *(f"- {line}" for line in found["lines"]), found["fix"]]


def _held(one: Held, addresses: dict[int, str], lang: str) -> str:
    values = {"node": addresses[one.node], "gpu": one.gpu, "mhz": _round(one.clock_mhz), "usual": _round(one.usual_mhz)}
    clock = t(lang, "monitor.slowdown.clock", **values) if one.clock_mhz is not None else ""
    if one.limit is None:
        return t(lang, "monitor.slowdown.slow", **values, clock=clock)
    why = t(lang, f"monitor.slowdown.limit.{one.limit}")
    return t(lang, "monitor.slowdown.held", **values, why=why, clock=clock).strip()


def _loaded(one: Loaded, addresses: dict[int, str], lang: str) -> str:
    values = {"load": f"{one.load:.0f}", "usual": f"{one.usual:.0f}"}
    return t(lang, "monitor.slowdown.loaded", node=addresses[one.node], **values)


def _few(lines: Sequence[str], lang: str) -> list[str]:
    rest = len(lines) - MOST
    return [*lines[:MOST], *([t(lang, "monitor.slowdown.more", count=rest)] if rest > 0 else [])]


def _round(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"
