"""The bundle: everything on the page that follows from the draft, as one JSON string for the scripts in static/."""

import dataclasses
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from app.i18n import catalogue, has, render_problem, t
from app.services import Services
from app.shell_parts import STEPS
from app.wizard import hardware, launch, model, plan, review
from app.wizard.fields import Form, label_of, table
from app.wizard.reading import Reading, read
from app.wizard.relevance import hidden
from app.wizard.summary import summarise
from backend.job.problems import Problem

Section = Callable[[Reading, str, Services], dict[str, Any]]

SECTIONS: Mapping[str, Section] = {
    hardware.STEP: hardware.data,
    model.STEP: model.data,
    plan.STEP: plan.data,
    review.STEP: review.data,
    launch.STEP: launch.data,
}
"""What each step shows beyond its fields; asked for the step that is on screen alone."""

_WORDS = ("wizard.", "term.", "check.status.", "step.")
_STEP_OF = {"cluster": "hardware", "model": "model", "training": "training", "name": "training", "parallel": "plan"}


def opening(lang: str) -> str:
    """What a page starts with: the words that its scripts need."""
    words = {key: text for key, text in catalogue(lang).items() if key.startswith(_WORDS)}
    return json.dumps({"words": words}, ensure_ascii=False)


def bundle(form: Form, services: Services, step: str, *, refusal: Sequence[Mapping[str, str]] | None = None) -> str:
    """The draft as it is now, for a page that shows `step`; `refusal` says why what was asked was not done."""
    stamp = _stamp()
    reading = read(services.draft.job_mapping(), services.home)
    problems = [_shown(form, problem, launch=False) for problem in reading.problems]
    missing = [_shown(form, problem, launch=True) for problem in reading.missing]
    section = SECTIONS.get(step)
    return json.dumps(
        {
            "at": stamp,
            "problems": problems + missing,
            "marks": _marks(problems, missing),
            "hidden": hidden(form, reading),
            "summary": summarise(reading),
            "data": section(reading, form.lang, services) if section else {},
            "refusal": refusal,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )


def _shown(form: Form, problem: Problem, *, launch: bool) -> dict[str, Any]:
    """A problem in words, with the widget it belongs to; what only a launch needs is not called an error."""
    at = form.place_of(problem.field)
    parameter = table().get(at or problem.field)
    label = label_of(form.lang, parameter) if parameter else ""
    if found := re.match(r"cluster\.hosts\[(\d+)\]", problem.field):
        label = t(form.lang, "wizard.hosts.node", rank=found[1])
    values = {**problem.values, "field": label} if label else problem.values
    words = render_problem(form.lang, dataclasses.replace(problem, values=values))
    if problem.code == "wrong_type" and has(form.lang, key := f"wizard.type.{problem.values['expected']}"):
        words |= {"message": t(form.lang, key), "fix": ""}
    severity = "missing" if launch and problem.code in _ABSENT else problem.severity
    step = form.steps[at] if at else _STEP_OF.get(problem.field.partition(".")[0], "plan")
    return {**words, "severity": severity, "at": at or "", "step": step, "label": label,
            "edits": dict(problem.edit) or None}  # fmt: skip


_ABSENT = frozenset({"needed_for_launch", "no_environment", "hosts_not_nodes"})


def _marks(problems: Iterable[Mapping[str, Any]], missing: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    marks = {step: {"errors": 0, "missing": 0} for step in STEPS}
    for problem in itertools.chain(problems, missing):
        kind = "missing" if problem["severity"] == "missing" else "errors" if problem["severity"] == "error" else None
        if kind:
            marks[problem["step"]][kind] += 1
    return marks


_stamp_lock = threading.Lock()
_last_stamp = 0


def _stamp() -> int:
    """A number that grows with every bundle, over restarts too, and that JavaScript holds exactly."""
    global _last_stamp
    with _stamp_lock:
        _last_stamp = max(_last_stamp + 1, time.time_ns() // 1000)
        return _last_stamp
