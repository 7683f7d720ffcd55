"""Finds the known causes (cause_catalogue.py) in the text of a log.

A log may hold the output of several processes: `[rank3]: ` and similar prefixes say which process wrote a line, and the
launcher writes lines of its own. The lines of each process are read as a text of their own.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from backend.runs.diagnosis.cause_catalogue import Cause, causes

LINES_SHOWN = 25
"""Greatest number of last lines that are shown."""
QUOTED = 300
"""Limit on the characters of a line that is shown."""
LONGEST_LINE = 2000
"""Limit on the characters of a line that is searched. A pattern may need the square of the length of a line."""
_LIKELY = 3
"""Added to the rank of a cause whose text fits other causes too."""

_PREFIX = re.compile(
    r"\[(?:rank|default)(?P<rank>\d+)\]:? ?|\(\w+ pid=\d+(?:, ip=[\w.:]+)?\) ?|(?:\d{1,3}\.){3}\d{1,3}: "
    r"|[\w.-]{1,64}-\d{1,4} +\| |\| (?:DEBUG|INFO|WARNING|ERROR) +\| (?:stdout|stderr) \| ?"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S* +|[a-z][\w.-]{0,60}\d[\w.-]{0,60}: (?=[\w.]+(?:Error|Exception)\b)"
)
"""Prefixes of torch and torchrun, Ray, pdsh, docker compose, FastChat, and time stamps."""
_HOST = re.compile(r'^(?P<host>[\w.-]{1,64}): (?:Traceback \(most recent call last\)|  File ")')
"""A line of a traceback after the name of its machine, as pdsh writes it."""
_TRACEBACK = re.compile(r"^(?:Exception in thread .*\n)?Traceback \(most recent call last\)", re.MULTILINE)
_TRACEBACK_TITLE = "Traceback (most recent call last)"
_LINK = re.compile(
    r"During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception"
)
_CHAINED = re.compile(rf"(?:{_LINK.pattern}):\s*\Z")
_LINK_WITHIN = 150
"""Characters before a chained traceback in which the link to the one before it stands."""
_EXCEPTION = re.compile(r"^(?![ \t|+])(?!Traceback)[A-Za-z_][\w.]*(?:: .*|:?)$", re.MULTILINE)
_OF_LAUNCHER = re.compile(r"ChildFailedError|SignalException|CalledProcessError|ProcessExitedException")
"""Exceptions by which a launcher reports the end of another process."""

CONSEQUENCES = re.compile(
    r"Connection closed by (?:remote )?peer|Connection reset by peer|Broken pipe|ChildFailedError"
    r"|Watchdog caught collective|remote process exited or there was a network error"
    r"|SignalException|DistBackendError|Socket Timeout|recvBytes|Rendezvous(?:Connection|Timeout)Error"
    r"|waiting for clients|client socket has (?:timed out|failed)|NO_OTHER_FAILURES"
    r"|Timed out waiting \d+ ?ms for"
)
"""Reports of the other ranks when one rank is gone. They are not a cause."""
_ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?(?!nccl)[A-Za-z_]\w*(?:Error|Exception)\b.*", re.MULTILINE)
"""The last line of a traceback."""
_LAST_ERROR = re.compile(r"^Last error:[ \t]*\n?(?P<text>.*)", re.MULTILINE)
"""What NCCL says of its error, on the line below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A known cause in a log."""

    cause: Cause
    number: int
    """Number of its line in the log, from 0."""
    line: str
    is_certain: bool
    """False if the text fits other causes too."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Named groups of the pattern."""

    @property
    def order(self) -> tuple[int, int, bool]:
        """Return the sort key: exact causes first, then the earliest in the log."""
        weight = self.cause.rank if self.is_certain else self.cause.rank + _LIKELY
        return weight, self.number, self.cause.frames is None


@dataclass(frozen=True, slots=True)
class _Process:
    """The lines that one process wrote."""

    text: str
    starts: Sequence[int]
    """Start of each line in the text."""
    numbers: Sequence[int]
    """Number of each line in the log."""

    def number_at(self, position: int) -> int:
        return self.numbers[bisect_right(self.starts, position) - 1]


def matches(log: str) -> list[Match]:
    """Return the known causes in a log, the most probable first, one match for each cause."""
    lines = log.splitlines()
    whole = "\n".join(line[:LONGEST_LINE] for line in lines)
    best: dict[str, Match] = {}
    for process in _processes(lines):
        tracebacks = _tracebacks(process.text)
        fatal = _fatal(process.text, tracebacks)
        for cause in causes():
            if cause.unless and cause.unless.search(whole):
                continue
            for match in _of_cause(cause, process, tracebacks, fatal, lines):
                known = best.get(cause.code)
                if known is None or match.order < known.order:
                    best[cause.code] = match
    return sorted(best.values(), key=lambda match: match.order)


def probable(ordered: Sequence[Match]) -> list[Match]:
    """Return the match to show, and others that fit the same text equally well."""
    if not ordered:
        return []
    first = ordered[0]
    return [match for match in ordered if match.order == first.order and (match is first or not first.is_certain)]


def is_only_consequence(log: str) -> bool:
    """Return whether a log reports that another rank was gone, and no error of another kind."""
    if not CONSEQUENCES.search(log):
        return False
    texts = [process.text for process in _processes(log.splitlines())]
    errors = [match[0] for text in texts for match in _ERROR.finditer(text)]
    of_nccl = [match["text"] for text in texts for match in _LAST_ERROR.finditer(text) if match["text"].strip()]
    return all(CONSEQUENCES.search(error) or _OF_LAUNCHER.search(error) for error in (*errors, *of_nccl))


def last_lines(logs: Mapping[str, str]) -> tuple[str, str]:
    """Return (file, text): the last traceback of the first log that has one, else the end of the first log."""
    for file, text in logs.items():
        start = text.rfind(_TRACEBACK_TITLE)
        if start >= 0:
            return file, _end_of(text[start:])
    for file, text in logs.items():
        if text.strip():
            return file, _end_of(text)
    return "", ""


def first_lines(logs: Mapping[str, str]) -> tuple[str, str]:
    """Return (file, text) like last_lines, after the first of the tracebacks to which the last one is chained.

    An error in the handling of an error hides what went wrong first.
    """
    file, lines = last_lines(logs)
    text = logs.get(file, "")
    starts = [match.start() for match in re.finditer(re.escape(_TRACEBACK_TITLE), text)]
    first = len(starts) - 1
    while first > 0 and _LINK.search(text, max(starts[first - 1], starts[first] - _LINK_WITHIN), starts[first]):
        first -= 1
    if first == len(starts) - 1:
        return file, lines
    return file, f"{_end_of(text[starts[first] : starts[first + 1]])}\n{lines}"


def around(log: str, number: int, *, before: int, after: int) -> str:
    """Return the lines around a line of a log."""
    lines = log.splitlines()
    return "\n".join(lines[max(0, number - before) : number + after + 1])


def _processes(lines: Sequence[str]) -> list[_Process]:
    by_rank: dict[str, list[tuple[int, str]]] = {}
    hosts = tuple({f"{match['host']}: " for match in map(_HOST.match, lines) if match})
    for number, line in enumerate(lines):
        rank = ""
        if hosts and line.startswith(hosts):
            line = line.partition(": ")[2]
        while match := _PREFIX.match(line):
            rank, line = match["rank"] or rank, line[match.end() :]
        by_rank.setdefault(rank, []).append((number, line[:LONGEST_LINE]))
    return [_process(entries) for entries in by_rank.values()]


def _process(entries: Sequence[tuple[int, str]]) -> _Process:
    starts, position = [], 0
    for _, line in entries:
        starts.append(position)
        position += len(line) + 1
    return _Process("\n".join(line for _, line in entries), starts, [number for number, _ in entries])


def _tracebacks(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of each traceback with those that it is chained to, up to the start of the next."""
    starts = [match.start() for match in _TRACEBACK.finditer(text)]
    joined = [start for start in starts if not _CHAINED.search(text[max(0, start - 120) : start])]
    return list(pairwise([*joined, len(text)]))


def _fatal(text: str, tracebacks: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the part with the exception that ended the process. Without one, this is the whole text."""
    for start, end in reversed(tracebacks):
        exception = _EXCEPTION.search(text, start, end)
        if exception and not _OF_LAUNCHER.search(exception[0]):
            return start, end
    return 0, len(text)


def _of_cause(
    cause: Cause, process: _Process, tracebacks: Sequence[tuple[int, int]], fatal: tuple[int, int], lines: Sequence[str]
) -> Iterator[Match]:
    searches: Sequence[tuple[Literal["line", "error", "likely"], tuple[int, int]]] = (
        ("line", (0, len(process.text))),
        ("error", fatal),
        ("likely", (0, len(process.text))),
    )
    for kind, (begin, end) in searches:
        for pattern in getattr(cause, kind):
            match = pattern.search(process.text, begin, end)
            if match and (
                cause.frames is None or cause.frames.search(process.text, *_around(match, tracebacks, process))
            ):
                number = process.number_at(max(match.start(), match.end() - 1))
                values = {key: value[:QUOTED] for key, value in match.groupdict().items() if value}
                line = lines[number].strip()[:QUOTED]
                yield Match(cause=cause, number=number, line=line, is_certain=kind != "likely", values=values)


def _around(match: re.Match[str], tracebacks: Sequence[tuple[int, int]], process: _Process) -> tuple[int, int]:
    """Return the traceback that holds a match; the whole text if none does."""
    return next(((start, end) for start, end in tracebacks if start <= match.start() < end), (0, len(process.text)))


def _end_of(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-LINES_SHOWN:])
