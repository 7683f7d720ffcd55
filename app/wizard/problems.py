"""Problems as the page shows them: in the user's language, at their field, on their step."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from app.text import has, render_problem, t
from app.wizard.fields import Form, label_of, table, value_words
from backend.job.problems import Problem
from backend.planning.space import SIZES

_ABSENT = frozenset({"needed_for_launch", "no_environment", "hosts_not_nodes"})
_LOCKED = frozenset({"passphrase_needed", "passphrase_wrong"})
_STEP_OF = {"cluster": "hardware", "model": "model", "training": "training", "name": "training", "parallel": "plan"}


_LONG = 60
"""Letters of a button."""
_SHORT = {f"parallel.{name}": f"wizard.column.{name}" for name in SIZES}
"""Words for the parallel sizes where several stand in one line."""


def in_words(form: Form, problem: Problem, *, for_launch: bool = False) -> dict[str, Any]:
    """A problem with the widget it belongs to (`at`); what only a launch still needs is not called an error."""
    at = place_of(form, problem)
    parameter = table().get(at or problem.field)
    label = label_of(form.lang, parameter) if parameter else ""
    if found := re.match(r"cluster\.hosts\[(\d+)\]\.?(\w*)", problem.field):
        label = _host_label(form.lang, *found.groups())
    values = {**problem.values, "field": label} if label else problem.values
    words = render_problem(form.lang, dataclasses.replace(problem, values=values))
    if problem.code == "wrong_type" and problem.values["value"] == "null":
        words |= {"message": t(form.lang, "wizard.empty", field=values.get("field", problem.field))}
    severity = "missing" if for_launch and problem.code in _ABSENT else problem.severity
    # What stands in a line of text is corrected there.
    edits = {} if any("[" in path for path in problem.edit) else dict(problem.edit)
    step = form.steps[at] if at else _STEP_OF.get(problem.field.partition(".")[0], "plan")
    return {**words, "severity": severity, "at": at or "", "step": step, "label": label,
            "edits": edits or None, "choices": _choices(form.lang, problem),
            "apply": _apply_words(form.lang, at, edits),
            "unlock": problem.values["identity_file"] if problem.code in _LOCKED else None}  # fmt: skip


def place_of(form: Form, problem: Problem) -> str | None:
    """The widget beside which a problem stands.

    The one that the fix changes, of sizes that do not go together, and of a note that a switch of its step settles.
    """
    at = form.place_of(problem.field)
    if len(problem.edit) != 1:
        return at
    (fixed, value), *_ = problem.edit.items()
    other = form.place_of(fixed)
    is_size = {problem.field, fixed} <= _SHORT.keys()
    is_switch = problem.severity == "note" and isinstance(value, bool)
    is_other = is_size or (is_switch and at and other and form.steps[at] == form.steps[other])
    return other if is_other else at


def _host_label(lang: str, rank: str, name: str) -> str:
    node = t(lang, "wizard.hosts.node", rank=rank)
    key = f"param.cluster.hosts.{name}"
    return t(lang, "wizard.hosts.node.field", node=node, name=t(lang, key)) if name and has(lang, key) else node


def _apply_words(lang: str, at: str | None, edits: Mapping[str, Any]) -> str:
    """What a fix's button says it writes: the value alone at its own field; no more than `Apply` where that is long."""
    known = {path: table().get(path) for path in edits}
    if any(known[path] is None or value is None or isinstance(value, Mapping) for path, value in edits.items()):
        return t(lang, "wizard.apply")
    values = {path: value_words(lang, parameter, edits[path]) for path, parameter in known.items() if parameter}
    if at is not None and [*edits] == [at]:
        is_on = edits[at]
        key = ("wizard.apply.on" if is_on else "wizard.apply.off") if isinstance(is_on, bool) else "wizard.apply.to"
        words = t(lang, key, value=values[at])
    else:
        names = {path: label_of(lang, parameter) for path, parameter in known.items() if parameter}
        if len(names) > 1:
            names |= {path: t(lang, _SHORT[path]) for path in names if path in _SHORT}
        each = (f"{name} = {values[path]}" for path, name in names.items())
        words = t(lang, "wizard.apply.what", what=t(lang, "why.and").join(each))
    return words if len(words) <= _LONG else t(lang, "wizard.apply")


def _choices(lang: str, problem: Problem) -> list[dict[str, Any]]:
    """Buttons of a problem that has several ways out."""
    values = problem.values
    return [{"words": t(lang, f"problem.{problem.code}.{name}", **values), "edits": dict(edit)}
            for name, edit in problem.choices.items()]  # fmt: skip
