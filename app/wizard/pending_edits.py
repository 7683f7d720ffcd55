"""Edits of a page that never reached the server (static/wizard/pending_edits.js)."""

from collections.abc import Mapping
from typing import Any

from app.text import LANGUAGES
from app.wizard.fields import Form, choices_of, has_choices, table


def pending_edits(form: Form, pending: Mapping[str, Any]) -> dict[str, Any]:
    """Return {path: value} for the draft from the values that the fields showed in the page's language.

    Unknown fields, and texts that are not a choice of a list, are left out.
    """
    lang, fields = pending.get("lang"), pending.get("fields")
    if lang not in LANGUAGES or not isinstance(fields, Mapping):
        return {}
    edits = {}
    for path in form.components:
        element = f"field-{path.replace('.', '-')}"
        if element in fields:
            raw = _widget_value(lang, path, fields[element])
            if raw is not _NO_VALUE:
                edits[path] = form.value(path, raw)
    return edits


_NO_VALUE = object()


def _widget_value(lang: str, path: str, shown: Any) -> Any:
    """Return the value that the widget would have sent."""
    parameter = table()[path]
    if parameter.kind == "bool":
        return bool(shown)
    if not has_choices(parameter):
        return shown
    values = dict(choices_of(lang, parameter))
    if parameter.kind == "list":
        return [values[words] for words in shown if words in values]
    return values.get(shown, _NO_VALUE)
