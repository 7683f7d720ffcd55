"""Texts of the report of an import, for the page, the command line and programs."""

import json
from typing import Any

from app.text import render_problem, t
from backend.engines.importing import ImportLine

_SHOWN_LETTERS = 48


def reason_of(line: ImportLine, lang: str) -> str:
    """Return why a key was changed or dropped. Empty for a key that was kept."""
    if line.reason is None:
        return ""
    kind, _, name = line.reason.code.partition("_")
    if kind == "import":
        return t(lang, f"import.why.{name}", **line.reason.values)
    return render_problem(lang, line.reason)["message"]


def target_of(line: ImportLine) -> str:
    """Return the key's path in the job and its value: `training.template: qwen3`."""
    if line.path is None:
        return ""
    return f"{line.path}: {'null' if line.became is None else shown(line.became)}"


def shown(value: Any) -> str:
    """Return a value of the file, shortened for one line."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."


def line_json(line: ImportLine, lang: str) -> dict[str, Any]:
    """Return a line of the report as plain data, with values as text."""
    code = line.reason.code if line.reason else None
    return {"key": line.key, "outcome": line.outcome, "value": shown(line.value), "path": line.path,
            "became": target_of(line), "code": code, "reason": reason_of(line, lang)}  # fmt: skip
