"""Lines of a log of a run for a browser: the newest, the following, or the earlier lines."""

from typing import Any

from app.monitor.plain_text import complete, to_lines
from app.monitor.poll_request import LogRequest
from backend.runs.api import FileKey
from backend.runs.database import Database

FIRST_BYTES = 64 << 10
"""Size of a log's first answer, and the maximum size of one addition."""


def part(database: Database, run: str, request: LogRequest, is_final: bool) -> dict[str, Any]:
    """Return lines of the requested file, or of the node's first file if it has no such file. `lines` is empty if
    nothing is new. `asked` is the requested file, `file` the file of the lines (None while there is none).

    An unknown attempt counts as the newest one. That attempt may lack a file that the attempt before has: for example,
    torchrun's console exists only after a failure.

    `from` is set if the lines follow those of the browser, `before` if they precede them; neither if they replace
    them. Unless the run has ended, a line not yet written to its end waits.
    """
    with database.read() as reader:
        newest = reader.newest_attempt(run)
        attempt = request.attempt if request.attempt and request.attempt < newest else newest
        files = sorted(reader.log_files(run, attempt, request.node), key=_order)
        file = request.file if request.file in files else next(iter(files), None)
        answer: dict[str, Any] = {"attempt": attempt, "node": request.node, "asked": request.file, "file": file,
                                  "files": files, "lines": []}  # fmt: skip
        if file is None:
            return answer
        key = FileKey(run=run, attempt=attempt, rank=request.node, file=file)
        if request.before is not None:
            start, data = reader.log_tail(key, size=FIRST_BYTES, before=request.before)
            return {**answer, "before": request.before, **_earlier(start, data)}
        if request.around is not None:
            if request.end is not None:  # the browser has them
                return answer
            before = request.around + FIRST_BYTES
            start, data = reader.log_tail(key, size=2 * FIRST_BYTES, before=before)
            # The rest of the last line is in the log, or not yet written.
            data = data if is_final and reader.log_end(key) <= before else complete(data)
            cut = _line_start(start, data)
            line = data[cut : max(cut, request.around - start)].count(b"\n")
            return {**answer, "around": request.around, "line": line, **_shown(start + cut, data[cut:])}
        new = FIRST_BYTES if request.end is None else reader.log_end(key) - request.end
        size = new if 0 < new < FIRST_BYTES else FIRST_BYTES
        start, data = (request.end or 0, b"") if new == 0 else reader.log_tail(key, size=size)
    if request.end is not None and start <= request.end <= start + len(data):
        data = data[request.end - start :]
        return {**answer, "from": request.end, **_shown(request.end, data if is_final else complete(data))}
    data = data if is_final else complete(data)
    cut = _line_start(start, data)
    return {**answer, **_shown(start + cut, data[cut:])}


def place(database: Database, run: str, step: int) -> dict[str, Any]:
    """Return the place of a step in the log of rank 0. `offset` is None if it is not known."""
    with database.read() as reader:
        found = reader.log_place(run, step)
    attempt, offset = found or (None, None)
    return {"step": step, "attempt": attempt, "node": 0, "file": "rank0.log", "offset": offset}


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
    """Return the offset of the first whole line in data that may begin inside a line."""
    return data.find(b"\n") + 1 if start > 0 else 0
