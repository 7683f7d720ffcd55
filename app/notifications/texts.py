"""What a message says: of an event of a run, or of one that makes no progress."""

import time
from dataclasses import dataclass

from app.cli.output import duration
from app.text import alerts, hangs, render_problem, stragglers, t
from app.text.causes import evidence_lines
from backend.job.problems import Problem
from backend.runs.records import Event, RunSnapshot, problem_from_json
from backend.runs.states import EventKind

BAD = (
    EventKind.FAILED,
    EventKind.LOST,
    EventKind.RESTARTING,
    EventKind.LOSS_NOT_FINITE,
    EventKind.LOSS_ROSE,
    EventKind.GRAD_NORM_ROSE,
    EventKind.DISK_LOW,
)
TOLD = (EventKind.FINISHED, *BAD)
"""Not a stop: somebody asked for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """What an operator reads who is not at the page."""

    title: str
    body: str
    is_bad: bool


def of_event(event: Event, run: RunSnapshot, lang: str) -> Message:
    """The message about one of TOLD."""
    values = {
        **{name: event.detail.get(name) for name in ("number", "of", "step")},
        "node": next((node.address for node in run.nodes if node.rank == event.rank), None),
        **alerts.figures(event.detail),
    }
    told = event.detail.get("problem")
    cause = problem_from_json(told) if told else run.cause if event.kind in (EventKind.FAILED, EventKind.LOST) else None
    lines = [*(_why(cause, lang) if cause else []), *_progress(run, event.time, lang), _at(event.time, lang)]
    return _message(f"message.{event.kind.value}", values, run, lines, lang, is_bad=event.kind in BAD)


def of_standstill(run: RunSnapshot, lang: str) -> Message:
    """The message about a run without steps: since when, and who the others wait for."""
    lines = hangs.lines(run, lang)
    if run.standstill:
        lines.append(t(lang, "message.ends_at", at=_moment(run.standstill.ends_at)))
    return _message("message.standstill", {}, run, lines, lang, is_bad=True)


def of_slowdown(run: RunSnapshot, lang: str) -> Message:
    """The message about a run whose steps take longer than before: since when, and which node differs."""
    return _message("message.slowdown", {}, run, stragglers.lines(run, lang), lang, is_bad=True)


def trial(lang: str) -> Message:
    """What shows that an address is right."""
    return Message(title=t(lang, "message.trial"), body=t(lang, "message.trial.body"), is_bad=False)


def _message(
    key: str, values: dict[str, object], run: RunSnapshot, lines: list[str], lang: str, *, is_bad: bool
) -> Message:
    lines.append(t(lang, "message.run", run=run.id))
    return Message(title=t(lang, key, name=run.name, **values), body="\n".join(lines), is_bad=is_bad)


def _why(cause: Problem, lang: str) -> list[str]:
    words = render_problem(lang, cause)
    node = [t(lang, "message.node", node=cause.node)] if cause.node and cause.node not in words["message"] else []
    return [*node, words["message"], *evidence_lines(cause, lang), words["fix"]]


def _progress(run: RunSnapshot, now: float, lang: str) -> list[str]:
    if run.step is None:
        return []
    total = "–" if run.total_steps is None else run.total_steps
    took = duration(lang, run.elapsed.at(now) if run.elapsed else None)
    return [t(lang, "message.step", step=run.step, total=total, took=took)]


def _at(epoch: float, lang: str) -> str:
    return t(lang, "message.at", at=_moment(epoch))


def _moment(epoch: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(epoch))
