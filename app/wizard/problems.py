"""Problems in the form of the page: in the user's language, with their field and step."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from app.text import has, render_problem, t
from app.wizard.fields import Form, label_of, table, value_words
from backend.cluster.ssh import passphrases
from backend.job.problems import Problem
from backend.planning.space import SIZES

_MISSING = frozenset({"needed_for_launch", "no_environment", "hosts_not_nodes"})
_STEP_OF = {"cluster": "hardware", "model": "model", "training": "training", "name": "training", "parallel": "plan"}


_BESIDE = {"model.profile": "model.hf_config"}
"""Fields without a widget -> the field that shows their problems."""
_LABEL_LENGTH = 60
"""Maximum letters of a button."""
_SIZE_LABELS = {f"parallel.{name}": f"wizard.column.{name}" for name in SIZES}
"""Short labels for a line with several parallel sizes."""


def in_words(form: Form, problem: Problem, *, for_launch: bool = False) -> dict[str, Any]:
    """Return a problem with its widget (`at`). A value that only a launch needs is `missing`, not an error."""
    path = widget_of(form, problem)
    parameter = table().get(path or problem.field)
    label = label_of(form.lang, parameter) if parameter else ""
    if host_field := re.match(r"cluster\.hosts\[(\d+)\]\.?(\w*)", problem.field):
        label = _host_label(form.lang, *host_field.groups())
    values = {**problem.values, "field": label} if label else problem.values
    words = render_problem(form.lang, dataclasses.replace(problem, values=values))
    if problem.code == "wrong_type" and problem.values["value"] == "null":
        words |= {"message": t(form.lang, "wizard.empty", field=values.get("field", problem.field))}
    severity = "missing" if for_launch and problem.code in _MISSING else problem.severity
    # The user corrects a value of a line of text in that text.
    edits = {} if any("[" in path for path in problem.edit) else dict(problem.edit)
    step = form.steps[path] if path else _STEP_OF.get(problem.field.partition(".")[0], "plan")
    return {**words, "severity": severity, "at": path or "", "step": step, "label": label,
            "edits": edits or None, "choices": _choices(form.lang, problem),
            "apply": _apply_words(form.lang, path, edits),
            "unlock": problem.values["identity_file"] if problem.code in passphrases.CODES else None}  # fmt: skip


def widget_of(form: Form, problem: Problem) -> str | None:
    """Return the path of the widget that shows a problem.

    It is the widget that the fix changes if two parallel sizes conflict, or if a switch of its step resolves a note.
    """
    path = form.widget_of(_BESIDE.get(problem.field, problem.field))
    if len(problem.edit) != 1:
        return path
    (fixed, value), *_ = problem.edit.items()
    other = form.widget_of(fixed)
    is_size = {problem.field, fixed} <= _SIZE_LABELS.keys()
    is_switch = problem.severity == "note" and isinstance(value, bool)
    is_other = is_size or (is_switch and path and other and form.steps[path] == form.steps[other])
    return other if is_other else path


def _host_label(lang: str, rank: str, name: str) -> str:
    node = t(lang, "wizard.hosts.node", rank=rank)
    key = f"param.cluster.hosts.{name}"
    return t(lang, "wizard.hosts.node.field", node=node, name=t(lang, key)) if name and has(lang, key) else node


def _apply_words(lang: str, path: str | None, edits: Mapping[str, Any]) -> str:
    """Return the label of a fix's button: the value at its own field, else names and values; `Apply` if too long."""
    parameters = {path: table().get(path) for path in edits}
    if any(parameters[path] is None or value is None or isinstance(value, Mapping) for path, value in edits.items()):
        return t(lang, "wizard.apply")
    values = {path: value_words(lang, parameter, edits[path]) for path, parameter in parameters.items() if parameter}
    if path is not None and [*edits] == [path]:
        switch = edits[path]
        key = ("wizard.apply.on" if switch else "wizard.apply.off") if isinstance(switch, bool) else "wizard.apply.to"
        words = t(lang, key, value=values[path])
    else:
        names = {path: label_of(lang, parameter) for path, parameter in parameters.items() if parameter}
        if len(names) > 1:
            names |= {path: t(lang, _SIZE_LABELS[path]) for path in names if path in _SIZE_LABELS}
        assignments = (f"{name} = {values[path]}" for path, name in names.items())
        words = t(lang, "wizard.apply.what", what=t(lang, "why.and").join(assignments))
    return words if len(words) <= _LABEL_LENGTH else t(lang, "wizard.apply")


def _choices(lang: str, problem: Problem) -> list[dict[str, Any]]:
    """Return the buttons of a problem that has several fixes."""
    values = problem.values
    return [{"words": t(lang, f"problem.{problem.code}.{name}", **values), "edits": dict(edit)}
            for name, edit in problem.choices.items()]  # fmt: skip
