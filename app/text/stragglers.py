"""Texts about a run whose steps became slower, for the page, the command line and messages."""

from collections.abc import Sequence
from typing import Any

from app.text import t
from backend.runs.api import Held, Loaded
from backend.runs.records import RunSnapshot

MAX_LINES = 8
IDLE_PERCENT = 60
"""GPUs with a lower average utilization wait for something."""


def texts(run: RunSnapshot, lang: str) -> dict[str, Any] | None:
    """Return a title, a line for each node or GPU that differs, and a fix. None if the run is not slower."""
    slow = run.slowdown
    if slow is None:
        return None
    addresses = {node.rank: f"{node.rank} · {node.address}" for node in run.nodes}
    lines = [_held(gpu, addresses, lang) for gpu in slow.held]
    lines += [_loaded(node, addresses, lang) for node in slow.loaded]
    if not lines:
        idle = slow.utilization is not None and slow.utilization < IDLE_PERCENT
        lines = [
            t(lang, "monitor.straggler.idle" if idle else "monitor.straggler.none", percent=_round(slow.utilization))
        ]
    return {
        "title": t(
            lang,
            "monitor.straggler.title",
            step=f"{slow.since_step:,}",
            now=f"{slow.step_s:.3g}",
            usual=f"{slow.usual_s:.3g}",
            percent=round(100 * (slow.step_s / slow.usual_s - 1)),
        ),
        "lines": _shortened(lines, lang),
        "fix": t(lang, "monitor.straggler.fix.node" if slow.held or slow.loaded else "monitor.straggler.fix"),
    }


def lines(run: RunSnapshot, lang: str) -> list[str]:
    """Return the same as lines of text. Empty if the run is not slower."""
    notice = texts(run, lang)
    return [] if notice is None else [notice["title"], *(f"- {line}" for line in notice["lines"]), notice["fix"]]


def _held(gpu: Held, addresses: dict[int, str], lang: str) -> str:
    values = {"node": addresses[gpu.node], "gpu": gpu.gpu, "mhz": _round(gpu.clock_mhz), "usual": _round(gpu.usual_mhz)}
    clock = t(lang, "monitor.straggler.clock", **values) if gpu.clock_mhz is not None else ""
    if gpu.limit is None:
        return t(lang, "monitor.straggler.slow", **values, clock=clock)
    why = t(lang, f"monitor.straggler.limit.{gpu.limit}")
    return t(lang, "monitor.straggler.held", **values, why=why, clock=clock).strip()


def _loaded(node: Loaded, addresses: dict[int, str], lang: str) -> str:
    values = {"load": f"{node.load:.0f}", "usual": f"{node.usual:.0f}"}
    return t(lang, "monitor.straggler.loaded", node=addresses[node.node], **values)


def _shortened(lines: Sequence[str], lang: str) -> list[str]:
    rest = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], *([t(lang, "monitor.straggler.more", count=rest)] if rest > 0 else [])]


def _round(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"
