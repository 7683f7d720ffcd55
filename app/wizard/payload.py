"""The payload: everything on the page that follows from the draft, as one JSON string for the scripts in static/."""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.services import Services
from app.text import catalogue
from app.web.shell_parts import STEPS
from app.wizard import continuing, hardware, launch, model, plan, review, training
from app.wizard.draft_state import DraftState, read
from app.wizard.fields import Form
from app.wizard.problems import in_words
from app.wizard.relevance import hidden
from app.wizard.summary import summarise
from backend.job.problems import Problem

Section = Callable[[DraftState, Form, Services], dict[str, Any]]

SECTIONS: Mapping[str, Section] = {
    hardware.STEP: hardware.data,
    model.STEP: model.data,
    training.STEP: training.data,
    plan.STEP: plan.data,
    review.STEP: review.data,
    launch.STEP: launch.data,
}
"""Data that each step shows beside its fields. Computed only for the step on screen."""

_WORDS = (
    "wizard.",
    "import.outcome.",
    "import.column.",
    "advice.",
    "term.",
    "explain.",
    "accuracy.",
    "check.status.",
    "step.",
)


def initial_value(lang: str) -> str:
    """Return the first value of a page: the words that its scripts need."""
    words = {key: text for key, text in catalogue(lang).items() if key.startswith(_WORDS)}
    return json.dumps({"words": words}, ensure_ascii=False)


def payload_json(form: Form, services: Services, step: str, refused: Iterable[Problem] = (), **answer: Any) -> str:
    """Return the payload of the current draft for a page that shows `step`.

    `refused` holds the reasons if an edit was refused. `answer` is the result of the script's own request: `span`, the
    versions of the draft before and after its edit; `synced`, that all widgets show the draft (static/wizard/draft.js).
    """
    stamp, version = services.draft.new_stamp(), services.draft.version
    state = read(services.draft.job_mapping(), services.home)
    load_problems = continuing.load_problems(services, state.job)
    problems = [in_words(form, problem) for problem in (*refused, *state.problems, *load_problems)]
    missing = [in_words(form, problem, for_launch=True) for problem in state.missing]
    section = SECTIONS.get(step)
    return json.dumps(
        {
            "at": stamp,
            "draft": version,
            "step": step,
            "problems": problems + missing,
            "marks": _marks(problems, missing),
            "hidden": hidden(form, state),
            "summary": summarise(state),
            "source": continuing.banner(services, form, load_problems),
            "data": section(state, form, services) if section else {},
            "refusal": None,
            **answer,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )


def _marks(problems: Iterable[Mapping[str, Any]], missing: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    marks = {step: {"errors": 0, "missing": 0} for step in STEPS}
    for problem in itertools.chain(problems, missing):
        kind = "missing" if problem["severity"] == "missing" else "errors" if problem["severity"] == "error" else None
        if kind:
            marks[problem["step"]][kind] += 1
    return marks
