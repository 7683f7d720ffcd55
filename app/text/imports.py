"""The report of an import, in words: for the command line, for programs and for the page."""

import json
from typing import Any

from app.text import render_problem, t
from backend.engines.importing import ImportLine

_SHOWN_LETTERS = 48


def reason_of(line: ImportLine, lang: str) -> str:
    """Why a key was not simply kept, in words; empty for one that was."""
    if line.reason is None:
        return ""
    kind, _, name = line.reason.code.partition("_")
    if kind == "import":
        return t(lang, f"import.why.{name}", **line.reason.values)
    return render_problem(lang, line.reason)["message"]


def target_of(line: ImportLine) -> str:
    """Where the key went and what stands there: `training.template: qwen3`."""
    if line.path is None:
        return ""
    return f"{line.path}: {'null' if line.became is None else shown(line.became)}"


def shown(value: Any) -> str:
    """A value of the file, short enough for a line."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."


def line_json(line: ImportLine, lang: str) -> dict[str, Any]:
    """A line of the report as plain data; values as their text."""
    code = line.reason.code if line.reason else None
    return {"key": line.key, "outcome": line.outcome, "value": shown(line.value), "path": line.path,
            "became": target_of(line), "code": code, "reason": reason_of(line, lang)}  # fmt: skip
