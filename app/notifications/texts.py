"""Texts of messages about runs: events, hangs and slow runs."""

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
    EventKind.GRAD_NORM_NOT_FINITE,
    EventKind.METRIC_ALERT,
    EventKind.LOSS_ZERO,
    EventKind.LABELS_MASKED,
    EventKind.DISK_LOW,
    EventKind.OUTSIDE_INTERVAL,
)
NOTIFIED = (EventKind.FINISHED, *BAD)
"""Events that cause a message. A stop causes none, because a user requested it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message about a run."""

    title: str
    body: str
    is_bad: bool


def needs_message(event: Event) -> bool:
    """Return whether somebody should be told of an event of a kind in NOTIFIED: not of a run that is better than
    planned.
    """
    return event.detail.get("side") != "low"


def event_message(event: Event, run: RunSnapshot, lang: str) -> Message:
    """Return the message about an event of a kind in NOTIFIED."""
    values = {
        **{name: event.detail.get(name) for name in ("number", "of", "step")},
        "node": next((node.address for node in run.nodes if node.rank == event.rank), None),
        **alerts.figures(event.detail),
        "condition": alerts.condition_words(event.detail, lang),
    }
    problem = event.detail.get("problem")
    cause = (
        problem_from_json(problem)
        if problem
        else run.cause
        if event.kind in (EventKind.FAILED, EventKind.LOST)
        else None
    )
    lines = [*(_why(cause, lang) if cause else []), *_progress(run, event.time, lang), _at(event.time, lang)]
    return _message(f"message.{alerts.key(event)}", values, run, lines, lang, is_bad=event.kind in BAD)


def hang_message(run: RunSnapshot, lang: str) -> Message:
    """Return the message about a run that makes no steps: since when, and the nodes that it waits for."""
    lines = hangs.lines(run, lang)
    if run.standstill:
        lines.append(t(lang, "message.ends_at", at=_moment(run.standstill.ends_at)))
    return _message("message.hang", {}, run, lines, lang, is_bad=True)


def straggler_message(run: RunSnapshot, lang: str) -> Message:
    """Return the message about a run whose steps take longer than before: since when, and the nodes that differ."""
    return _message("message.straggler", {}, run, stragglers.lines(run, lang), lang, is_bad=True)


def test_notification(lang: str) -> Message:
    """Return a test notification for an address."""
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
