"""One log of a run as the browser asks for it: the newest lines, what came after, or what stands before."""

from typing import Any

from app.monitor.plain_text import complete, to_lines
from app.monitor.poll_request import LogQuestion
from backend.runs.api import FileKey
from backend.runs.database import Database

FIRST_BYTES = 64 << 10
"""What is shown of a log at first; it is also the most that one tick adds."""


def part(database: Database, run: str, asked: LogQuestion, is_final: bool) -> dict[str, Any]:
    """Lines of the requested file, or of the node's first file if it has no such file; `lines` is empty if there is
    nothing new. `asked` is the requested file, `file` the file of the lines (None while there is none).

    An unknown attempt counts as the newest one. That attempt may lack a file that the attempt before has: for example,
    torchrun's console exists only after a failure.

    `from` is set if the lines follow those of the browser, `before` if they precede them; neither if they replace
    them. Unless the run has ended, a line not yet written to its end waits.
    """
    with database.read() as reader:
        newest = reader.newest_attempt(run)
        attempt = asked.attempt if asked.attempt and asked.attempt < newest else newest
        files = sorted(reader.log_files(run, attempt, asked.node), key=_order)
        file = asked.file if asked.file in files else next(iter(files), None)
        answer: dict[str, Any] = {"attempt": attempt, "node": asked.node, "asked": asked.file, "file": file,
                                  "files": files, "lines": []}  # fmt: skip
        if file is None:
            return answer
        key = FileKey(run=run, attempt=attempt, rank=asked.node, file=file)
        if asked.before is not None:
            start, data = reader.log_tail(key, size=FIRST_BYTES, before=asked.before)
            return {**answer, "before": asked.before, **_earlier(start, data)}
        new = FIRST_BYTES if asked.end is None else reader.log_end(key) - asked.end
        size = new if 0 < new < FIRST_BYTES else FIRST_BYTES
        start, data = (asked.end or 0, b"") if new == 0 else reader.log_tail(key, size=size)
    if asked.end is not None and start <= asked.end <= start + len(data):
        data = data[asked.end - start :]
        return {**answer, "from": asked.end, **_shown(asked.end, data if is_final else complete(data))}
    data = data if is_final else complete(data)
    cut = _line_start(start, data)
    return {**answer, **_shown(start + cut, data[cut:])}


def _order(file: str) -> tuple[bool, int, str]:
    # each rank's own log first: torchrun's console holds little
    return file == "out.log", len(file), file


def _shown(start: int, data: bytes) -> dict[str, Any]:
    lines = to_lines(data)
    return {"start": start, "end": start + len(data), "lines": lines.lines, "open": lines.is_open}


def _earlier(start: int, data: bytes) -> dict[str, Any]:
    cut = _line_start(start, data)
    return _shown(start + cut, data[cut:])


def _line_start(start: int, data: bytes) -> int:
    """Where the first whole line begins, when the part was cut out of the middle of a file."""
    return data.find(b"\n") + 1 if start > 0 else 0
