"""Log bytes as plain lines: the final text of a terminal, without colours and secrets."""

import re
from dataclasses import dataclass

from backend.runs.api import decoded
from backend.runs.redact import redact

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
LINE_LIMIT = 4000
"""Maximum characters of a shown line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownLines:
    """Lines ready to show. `is_open`: the last line will be overwritten, for example a progress bar."""

    lines: tuple[str, ...]
    is_open: bool


def complete(data: bytes) -> bytes:
    """Return the data up to the last line end or carriage return. An incomplete character or escape waits."""
    return data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]


def to_lines(data: bytes) -> ShownLines:
    """Decode, drop escape sequences and control characters, and keep the newest state of overwritten lines."""
    text = _CONTROL.sub("", _ESCAPE.sub("", decoded(data).replace("\r\n", "\n")))
    lines = [_last_state(line) for line in redact(text).split("\n")]
    is_open = text.endswith("\r")
    if lines and not lines[-1] and not is_open:
        lines.pop()
    return ShownLines(lines=tuple(_short(line) for line in lines), is_open=is_open)


def _last_state(line: str) -> str:
    return next((state.rstrip() for state in reversed(line.split("\r")) if state.strip()), "")


def _short(line: str) -> str:
    return line if len(line) <= LINE_LIMIT else f"{line[:LINE_LIMIT]}\u2026"
