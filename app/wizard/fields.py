"""Widgets made from the parameter table. Paths, types, ranges and units are there; words are in the catalogues.

A widget's element id is `field-<path with dots as dashes>`, so that scripts can show a problem beside its field.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import gradio as gr
from gradio.components import Component

from app.text import has, reference, t
from app.wizard.hosts import FIELD as HOSTS
from app.wizard.hosts import SPARES, spares_text, to_form
from app.wizard.scheduler import KIND as SCHEDULER_KIND
from app.wizard.scheduler import kind_of
from app.wizard.texts import TEXTS, text_of
from backend.engines import ENGINES
from backend.job.batch import written
from backend.job.parameters import Parameter
from backend.job.patterns import WORDS
from backend.job.presets import gpus, models

OWN = ""
"""The value of the choice `none of these`."""
_SIDE_BY_SIDE = 20
"""Maximum width in letters of choices that are shown side by side. Wider choices are shown in a dropdown."""
_EXACT = 2**53
"""Largest integer up to which a browser's numbers are exact."""
_FLOAT_LIMIT = 1e308
_TINY = 1e-3
"""A parameter with a smaller default has a text box, because a number box cannot show 2e-5."""


@cache
def table() -> Mapping[str, Parameter]:
    """Return every parameter that a widget may show: those of the reference, and the hosts as lines.

    In the draft the kind of scheduler may be null: SSH nodes.
    """
    known = reference.table()
    lines = Parameter(path=f"{HOSTS}.lines", kind="str", optional=True, required=False, default=None)
    kind = replace(known[SCHEDULER_KIND], optional=True, default=None)
    return {**known, lines.path: lines, kind.path: kind}


class Form:
    """The widgets of the wizard in one language, by path. Each path has one widget."""

    def __init__(self, lang: str) -> None:
        self.lang = lang
        self.components: dict[str, Component] = {}
        self.steps: dict[str, str] = {}
        """Path -> the step of its widget."""
        self._table = table()
        self._step = ""

    def start(self, step: str) -> None:
        """Set the step of the widgets that are made next."""
        self._step = step

    def field(self, path: str, *, lines: int = 1, placeholder: str | None = None) -> Component:
        """Make the widget of one parameter. Raises KeyError for an unknown path, ValueError for a second widget."""
        if path in self.components:
            raise ValueError(f"{path} has a widget already")
        parameter = self._table[path]
        component = _widget(parameter, self.lang, lines=lines, placeholder=placeholder)
        self.components[path] = component
        self.steps[path] = self._step
        return component

    def fields(self, *paths: str) -> None:
        """Make a widget for each path."""
        for path in paths:
            self.field(path)

    def value(self, path: str, raw: Any) -> Any:
        """Return the draft's value for a widget's value. A value that cannot be read is kept unchanged."""
        return to_draft(self._table[path], raw)

    def shown(self, draft: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of all widgets for a draft."""
        return {path: self.shown_at(draft, path) for path in self.components}

    def shown_at(self, draft: Mapping[str, Any], path: str) -> Any:
        """Return the value of the widget of one path for a draft."""
        return to_widget(self._table[path], look_up(draft, path))

    def widget_of(self, field: str) -> str | None:
        """Return the path of the widget that shows a problem of `field`."""
        for path in _candidates(field):
            if path in self.components:
                return path
        return None


def look_up(draft: Mapping[str, Any], path: str) -> Any:
    """Return the draft's value at a path, None if there is none."""
    if path.startswith(f"{HOSTS}."):
        return to_form(look_up(draft, HOSTS)).get(path.rpartition(".")[2])
    if path == SPARES:
        cluster = draft.get("cluster")
        return spares_text(cluster.get("spares"), cluster.get("hosts")) if isinstance(cluster, Mapping) else ""
    if path == SCHEDULER_KIND:
        return kind_of(look_up(draft, SCHEDULER_KIND.rpartition(".")[0]))
    value: Any = draft
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def to_draft(parameter: Parameter, raw: Any) -> Any:
    """Return a widget's value in the form of the job file."""
    if isinstance(raw, str) and parameter.path not in TEXTS:
        raw = raw if parameter.path == SPARES or parameter.path.endswith(".lines") else raw.strip()
        if parameter.pattern == WORDS:
            raw = ",".join(part.strip() for part in raw.split(","))
        if not raw and (parameter.optional or parameter.path.startswith("cluster.environments.")):
            return None
        if parameter.kind in ("int", "float"):
            return _number(raw)
    if isinstance(raw, float) and raw.is_integer() and parameter.kind == "int":
        return int(raw)
    return raw


def to_widget(parameter: Parameter, value: Any) -> Any:
    """Return a value of the draft in the form of its widget."""
    if value is None:
        value = parameter.default
    if parameter.path == "cluster.gpu":
        return value if isinstance(value, str) else OWN
    if parameter.path == SPARES:
        return value or ""
    if parameter.path in TEXTS:
        return text_of(parameter.path, value)
    if parameter.kind == "bool":
        return bool(value)
    if parameter.kind == "list":
        return [item for item in value if item in parameter.choices] if isinstance(value, list | tuple) else []
    if parameter.kind == "choice" or parameter.path in _PICKED:
        return OWN if value is None else value
    if parameter.kind in ("int", "float") and not _is_tiny(parameter):
        return _sendable(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return "" if value is None else _text(value)


def _sendable(value: float) -> float | None:
    """Return a number that Gradio can send to the browser: its JSON refuses integers of more than 64 bits."""
    if isinstance(value, int) and abs(value) > _EXACT:
        return float(value) if abs(value) < _FLOAT_LIMIT else None
    return value


def label_of(lang: str, parameter: Parameter) -> str:
    """Return the parameter's name with its unit."""
    name = t(lang, f"param.{parameter.path}")
    unit = reference.unit_words(lang, parameter.unit) if parameter.unit else ""
    return t(lang, "wizard.label", name=name, unit=unit) if unit and unit not in name.lower() else name


def value_words(lang: str, parameter: Parameter, value: Any) -> str:
    """Return a value in the words of its field."""
    if value is None:
        return t(lang, "wizard.help.none")
    if isinstance(value, bool):
        return t(lang, "wizard.help.on" if value else "wizard.help.off")
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value)) or t(lang, "wizard.help.none")
    if isinstance(value, Mapping):
        return t(lang, "wizard.gpu.own")
    if isinstance(value, str):
        choices = choices_of(lang, parameter) if has_choices(parameter) else []
        return next((words for words, choice in choices if choice == value), value)
    return f"{value:,}" if isinstance(value, int) else written(value, 6)


def choices_of(lang: str, parameter: Parameter) -> list[tuple[str, str]]:
    """Return (words, value) of every choice."""
    if parameter.path == "cluster.gpu":
        return [(gpu.name, gpu.key) for gpu in gpus().values()] + [(t(lang, "wizard.gpu.own"), OWN)]
    if parameter.path == "model.preset":
        known = sorted(models().values(), key=lambda model: (_family(model.name), model.parameters))
        return [(model.name, model.key) for model in known] + [(t(lang, "wizard.model.own"), OWN)]
    values: Iterable[str] = ENGINES if parameter.path == "engine" else parameter.choices
    named = [(_choice(lang, parameter.path, value), value) for value in values]
    return [(t(lang, f"choice.{parameter.path}.default"), OWN), *named] if parameter.optional else named


def _family(name: str) -> list[str | float]:
    """Return a sort key, the name without its size: Qwen2.5 before Qwen2.5-VL before Qwen3."""
    family = re.sub(r" A?\d[\dx.]*B.*$", "", name).casefold()
    return [float(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+(?:\.\d+)?)", family))]


_PICKED = frozenset({"cluster.gpu", "model.preset"})


def has_choices(parameter: Parameter) -> bool:
    """Return whether the parameter's widget shows the words of `choices_of`."""
    return (
        parameter.kind == "choice" or parameter.path in _PICKED or bool(parameter.kind == "list" and parameter.choices)
    )


def _widget(parameter: Parameter, lang: str, *, lines: int, placeholder: str | None) -> Component:
    help_key = f"param.{parameter.path}.help"
    common: dict[str, Any] = {
        "label": label_of(lang, parameter),
        "info": t(lang, help_key) if has(lang, help_key) else None,
        "elem_id": "field-" + parameter.path.replace(".", "-"),
        "value": to_widget(parameter, None),
    }
    if parameter.kind == "bool":
        return gr.Checkbox(**common)
    if parameter.kind == "list" and parameter.choices:
        return gr.CheckboxGroup(choices_of(lang, parameter), **common)
    if has_choices(parameter):
        choices = choices_of(lang, parameter)
        if sum(_width(words) + 1 for words, _ in choices) <= _SIDE_BY_SIDE:
            return gr.Radio(choices, **common)
        return gr.Dropdown(choices, filterable=parameter.path in _PICKED, **common)
    if parameter.kind in ("int", "float") and not _is_tiny(parameter):
        return gr.Number(step=_step(parameter), **common)
    return gr.Textbox(lines=lines, max_lines=max(lines, 24 if lines > 1 else 1), placeholder=placeholder, **common)


def _is_tiny(parameter: Parameter) -> bool:
    default = parameter.default
    return parameter.kind == "float" and isinstance(default, float) and 0 < default < _TINY


def _step(parameter: Parameter) -> float:
    if parameter.kind == "int":
        return 1
    limit = parameter.default if isinstance(parameter.default, float) else 1
    return 0.01 if limit < 1 else 0.1 if limit < 10 else 10


def _choice(lang: str, path: str, value: str) -> str:
    key = f"choice.{path}.{value}"
    return t(lang, key) if has(lang, key) else value


def _width(words: str) -> int:
    return sum(1 if letter.isascii() else 2 for letter in words)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return written(value, 6)
    return str(value)


def _number(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _candidates(field: str) -> Sequence[str]:
    """Return a problem's field, then its parents: `cluster.hosts[2].port`, `cluster.hosts`, its lines."""
    bare = re.sub(r"\[\d+\].*", "", field)
    names = bare.split(".")
    wider = [".".join(names[:count]) for count in range(len(names), 0, -1)]
    return [field, *wider, f"{bare}.lines"] if bare == HOSTS else [field, *wider]
