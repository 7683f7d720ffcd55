"""The catalogue of known causes of failed runs: YAML files in causes/, one for each area.

Keys of an entry:

- code: stable code of the problem; `problem.CODE` and `problem.CODE.fix` are its texts.
- category: name of the kind of failure in the public list of failures. The default is the code; null: not in the list.
- line: patterns that identify the cause in any line of a log.
- error: patterns that identify it in the exception that ended the process. The program handles many exceptions without
  harm, so a text such as `FileNotFoundError` counts only there. The pattern begins at the start of a line.
- likely: patterns that fit the cause, but other causes too.
- may_follow: true if other ranks show this too when one rank is gone. A cause on another node has priority.
- frames: pattern that must also match in the same traceback.
- unless: pattern that must not match anywhere in the log.
- generic: true if any entry that names a cause more exactly has priority. last: it is the last of these.
- checked: codes of the rules and checks that find the cause before a launch.
- late: true if it shows itself during the training, in any step or at a checkpoint, and not at the start.
- edits: changes of the job that may help: `set: {path: value}`, `half: [path]`, `double: [path]`;
  `plan: recommended` is the recommended plan of the job's engine, if one fits.
- yields_to_kernel_log: true if an Xid message of the kernel explains the cause better.
- source: address of the program's source, of its manual or of a report.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

_FOLDER = resources.files("backend.runs.diagnosis") / "causes"
_PATTERNS = ("line", "error", "likely")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression, and a text that is in every match: most texts lack it, and need no slow search."""

    expression: re.Pattern[str]
    literal: str

    def search(self, text: str, begin: int = 0, end: int | None = None) -> re.Match[str] | None:
        """Return the first match in a part of the text."""
        end = len(text) if end is None else end
        return self.expression.search(text, begin, end) if text.find(self.literal, begin, end) >= 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """One entry of the catalogue."""

    code: str
    category: str | None
    area: str
    """Name of its file."""
    line: tuple[Pattern, ...]
    error: tuple[Pattern, ...]
    likely: tuple[Pattern, ...]
    frames: Pattern | None
    unless: Pattern | None
    rank: int
    """0: names the cause exactly. Causes of a higher rank count only where no lower rank fits."""
    checked: tuple[str, ...]
    late: bool
    edits: tuple[Mapping[str, Any], ...]
    may_follow: bool
    yields_to_kernel_log: bool
    source: str


@cache
def causes() -> tuple[Cause, ...]:
    """Return all entries of the catalogue. Raises ValueError for an entry that is not valid."""
    files = sorted((file for file in _FOLDER.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    entries = [
        _read(entry, file.name.removesuffix(".yaml"))
        for file in files
        for entry in yaml.safe_load(file.read_text(encoding="utf-8"))
    ]
    codes = [cause.code for cause in entries]
    if len(set(codes)) < len(codes):
        raise ValueError(f"causes: codes that occur twice: {sorted({code for code in codes if codes.count(code) > 1})}")
    return tuple(entries)


@cache
def by_code() -> Mapping[str, Cause]:
    """Return code -> entry."""
    return {cause.code: cause for cause in causes()}


def _read(entry: Mapping[str, Any], area: str) -> Cause:
    keys = {"code", "category", "frames", "unless", "generic", "last", "checked", "late", "edits", "may_follow"}
    keys |= {"yields_to_kernel_log"}
    unknown = set(entry) - keys - set(_PATTERNS) - {"source"}
    if unknown or not entry.get("source") or not any(entry.get(kind) for kind in _PATTERNS):
        raise ValueError(
            f"causes/{area}.yaml: {entry.get('code')}: unknown keys {sorted(unknown)}, or no pattern or source"
        )
    return Cause(
        code=entry["code"],
        category=entry.get("category", entry["code"]),
        area=area,
        line=tuple(_compiled(pattern) for pattern in entry.get("line", ())),
        error=tuple(_compiled(pattern, at_start=True) for pattern in entry.get("error", ())),
        likely=tuple(_compiled(pattern) for pattern in entry.get("likely", ())),
        frames=_compiled(entry["frames"]) if "frames" in entry else None,
        unless=_compiled(entry["unless"]) if "unless" in entry else None,
        rank=bool(entry.get("generic")) + bool(entry.get("last")),
        checked=tuple(entry.get("checked", ())),
        late=bool(entry.get("late")),
        edits=tuple(entry.get("edits", ())),
        may_follow=bool(entry.get("may_follow")),
        yields_to_kernel_log=bool(entry.get("yields_to_kernel_log")),
        source=entry["source"],
    )


def _compiled(pattern: str, *, at_start: bool = False) -> Pattern:
    expression = f"^(?:{pattern})" if at_start else pattern
    return Pattern(re.compile(expression, re.MULTILINE), literal_of(pattern))


def literal_of(pattern: str) -> str:
    """Return the longest text that every match has; empty if the pattern shows none.

    Only plain letters outside of groups count. A letter before a quantifier is optional.
    """
    plain = re.sub(r"\\[AbBdDsSwWZ]|\[(?:\\.|[^\]])*\]", "\0", pattern)
    plain = re.sub(r"\\(.)", lambda match: "\1" if match[1] == "." else "\0", plain)
    while (shorter := re.sub(r"\([^()]*\)", "\0", plain)) != plain:
        plain = shorter
    if "|" in plain:
        return ""
    runs = re.split(r"[\0^$.()]+|.(?=[?*{+])|[?*+]|\{[^}]*\}", plain)
    return max(runs, key=len, default="").replace("\1", ".")
