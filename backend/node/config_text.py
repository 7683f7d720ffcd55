"""Says why a text is no config.json. The server and the nodes ask it. Standard library only, Python >= 3.8."""

from __future__ import annotations

import json
import re
from typing import Any

UNFINISHED = re.compile(r"[\w.+\\-]*")
"""The begin of a number or of a word, at the end of a text that was cut."""


def config_fault(text: str) -> dict[str, Any] | None:
    """Return why a text is no JSON object, as a `fault` with `line` and `column`; None if it is one.

    config_truncated: the text ends before its JSON does, as after a copy or a download that broke off.
    """
    if not text.strip():
        return _fault("config_empty")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :].rstrip()
        # json reports a string that was cut at its begin.
        if error.msg.startswith("Unterminated string") or UNFINISHED.fullmatch(rest):
            end = text.rstrip()
            return _fault("config_truncated", end.count("\n") + 1, len(end) - end.rfind("\n"))
        return _fault("config_not_json", error.lineno, error.colno)
    except RecursionError:
        return _fault("config_nested")
    return None if isinstance(value, dict) else _fault("config_not_object")


def _fault(code: str, line: int = 1, column: int = 1) -> dict[str, Any]:
    return {"fault": code, "line": line, "column": column}
