"""What a page kept that the server never took (static/wizard/unsent.js), as edits of the draft."""

from collections.abc import Mapping
from typing import Any

from app.text import LANGUAGES
from app.wizard.fields import Form, choices_of, has_choices, table


def unsent_edits(form: Form, unsent: Mapping[str, Any]) -> dict[str, Any]:
    """Path -> value for the draft, of what the fields showed in the language the page was in.

    Fields of another version, and choices that are none (words half typed into a list), are left out.
    """
    lang, fields = unsent.get("lang"), unsent.get("fields")
    if lang not in LANGUAGES or not isinstance(fields, Mapping):
        return {}
    edits = {}
    for path in form.components:
        element = f"field-{path.replace('.', '-')}"
        if element in fields:
            raw = _as_widget(lang, path, fields[element])
            if raw is not _NOTHING:
                edits[path] = form.value(path, raw)
    return edits


_NOTHING = object()


def _as_widget(lang: str, path: str, shown: Any) -> Any:
    """The value that the widget would have sent."""
    parameter = table()[path]
    if parameter.kind == "bool":
        return bool(shown)
    if not has_choices(parameter):
        return shown
    values = dict(choices_of(lang, parameter))
    if parameter.kind == "list":
        return [values[words] for words in shown if words in values]
    return values.get(shown, _NOTHING)
