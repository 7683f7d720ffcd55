"""Output of the command line: problems, aligned tables, JSON."""

import dataclasses
import io
import json
import os
import re
import sys
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from app.text import render_problem, t
from backend.job.problems import Problem

DONE, FAILED, WRONG_INPUT = 0, 1, 2
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def escape_unencodable_output() -> None:
    """Print characters that the terminal's encoding lacks as escapes, instead of raising UnicodeEncodeError."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Discard output that cannot be written. Otherwise Python tries again at exit and prints an error."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_problems(lang: str, problems: Iterable[Problem]) -> None:
    """Print one line per problem on standard error: severity, field, node, message, fix."""
    for problem in problems:
        rendered = render_problem(lang, problem)
        severity = t(lang, f"severity.{problem.severity}")
        place = " ".join(filter(None, (severity, rendered["field"], problem.node and f"[{problem.node}]")))
        line = t(lang, "cli.problem", place=place, message=rendered["message"], fix=rendered["fix"])
        print(printable(" ".join(line.split())), file=sys.stderr)


def printable(text: str) -> str:
    """Return text from a file or a node, with control characters escaped, because they could control the terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def print_json(value: Any, *, compact: bool = False) -> None:
    """Print JSON on standard output and flush it, so that a reader of a pipe gets it at once."""
    print(_json(value, indent=None if compact else 2), flush=True)


def print_object(first: Mapping[str, Any], name: str, items: Iterable[Any]) -> None:
    """Print one JSON object: the keys of `first`, then `name` with a list whose items are printed one by one."""
    print(f"{_json(first, indent=2)[:-2]},\n  {json.dumps(name)}: [", end="")
    separator = "\n"
    for item in items:
        print(f"{separator}    {_json(item)}", end="")
        separator = ",\n"
    print("\n  ]\n}", flush=True)


def _json(value: Any, indent: int | None = None) -> str:
    # JSON has its own escapes for characters that the terminal lacks.
    ascii_only = (getattr(sys.stdout, "encoding", None) or "utf-8").lower() != "utf-8"
    # JSON has no NaN or infinity. An estimate with one is a bug, which must raise here.
    text = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, indent=indent)
    # JSON can contain a lone surrogate, UTF-8 cannot. The answers to the next lines must still be printed.
    return text.encode(errors="replace").decode()


def to_json_data(record: Any) -> Any:
    """Return a record as JSON data. NaN becomes null."""
    if dataclasses.is_dataclass(record):
        return {field.name: to_json_data(getattr(record, field.name)) for field in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {str(key): to_json_data(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_json_data(value) for value in record]
    return None if isinstance(record, float) and record != record else record


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, all_left: bool = False, left_columns: Collection[int] = ()
) -> str:
    """Return a table for a terminal. The first column is left-aligned, the others right-aligned.

    `all_left` aligns all columns left; `left_columns` are the indices of more left-aligned columns.
    """
    lines = [[printable(cell) for cell in line] for line in (head, *rows)]
    columns = range(len(head))
    widths = [max(_width(line[column]) for line in lines) for column in columns]
    left = [all_left or column == 0 or column in left_columns for column in columns]
    return "\n".join("  ".join(map(_padded, line, widths, left)).rstrip() for line in lines)


def number(value: float | int | None, digits: int = 2) -> str:
    """Return a number as text, or a dash if it is unknown."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def duration(lang: str, seconds: float | None) -> str:
    """Return a duration as text, equal to that of static/lib/time.js, or a dash if it is unknown."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return t(lang, "monitor.time.seconds", seconds=whole)
    if whole < 3600:
        return t(lang, "monitor.time.minutes", minutes=whole // 60, seconds=f"{whole % 60:02}")
    if whole < 86400:
        return t(lang, "monitor.time.hours", hours=whole // 3600, minutes=f"{whole // 60 % 60:02}")
    return t(lang, "monitor.time.days", days=whole // 86400, hours=whole // 3600 % 24)


def _padded(cell: str, width: int, left: bool) -> str:
    space = " " * (width - _width(cell))
    return cell + space if left else space + cell


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
