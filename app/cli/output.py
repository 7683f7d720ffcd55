"""What the command line prints: problems a line each, aligned tables, JSON."""

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


def write_every_letter() -> None:
    """Letters that the terminal's encoding lacks are written as escapes; they would end the program."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Forget what standard output does not take, which Python would try and complain about once more at its end."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_problems(lang: str, problems: Iterable[Problem]) -> None:
    """One line a problem on standard error: severity, field, node, what is wrong, what to do."""
    for problem in problems:
        words = render_problem(lang, problem)
        severity = t(lang, f"severity.{problem.severity}")
        place = " ".join(filter(None, (severity, words["field"], problem.node and f"[{problem.node}]")))
        line = t(lang, "cli.problem", place=place, message=words["message"], fix=words["fix"])
        print(printable(" ".join(line.split())), file=sys.stderr)


def printable(text: str) -> str:
    """What a file of a stranger or a node says, without what would steer the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def print_json(value: Any, *, compact: bool = False) -> None:
    """JSON on standard output, flushed, so that a reader at the other end of a pipe never waits."""
    print(_json(value, indent=None if compact else 2), flush=True)


def print_object(first: Mapping[str, Any], name: str, items: Iterable[Any]) -> None:
    """One JSON object on standard output, with a last key `name` whose items are printed as they come, a line each."""
    print(f"{_json(first, indent=2)[:-2]},\n  {json.dumps(name)}: [", end="")
    separator = "\n"
    for item in items:
        print(f"{separator}    {_json(item)}", end="")
        separator = ",\n"
    print("\n  ]\n}", flush=True)


def _json(value: Any, indent: int | None = None) -> str:
    # An escape of JSON's own where the terminal lacks the letter.
    ascii_only = (getattr(sys.stdout, "encoding", None) or "utf-8").lower() != "utf-8"
    # NaN and infinity are no JSON: an estimate that yields one is a bug to be seen here.
    text = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, indent=indent)
    # A lone surrogate, which JSON can write and UTF-8 cannot, must not end the answers to the lines behind it.
    return text.encode(errors="replace").decode()


def plain(record: Any) -> Any:
    """A record as JSON data; NaN, which JSON has not, as null."""
    if dataclasses.is_dataclass(record):
        return {field.name: plain(getattr(record, field.name)) for field in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {str(key): plain(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [plain(value) for value in record]
    return None if isinstance(record, float) and record != record else record


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: bool = False, words: Collection[int] = ()
) -> str:
    """Columns aligned for a terminal: the first to the left, numbers to the right; Chinese letters count two.

    `left` puts all to the left, `words` these columns.
    """
    lines = [[printable(cell) for cell in line] for line in (head, *rows)]
    columns = range(len(head))
    widths = [max(_width(line[column]) for line in lines) for column in columns]
    sides = [left or column == 0 or column in words for column in columns]
    return "\n".join("  ".join(map(_padded, line, widths, sides)).rstrip() for line in lines)


def number(value: float | int | None, digits: int = 2) -> str:
    """A figure, or a dash for one that is not known."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def duration(lang: str, seconds: float | None) -> str:
    """As static/lib/time.js writes it on the page; a dash for one that is not known."""
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
