"""The audit log: who did what when, one JSON object a line, only ever appended to."""

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from backend.job.problems import Problem, ProblemsError
from backend.runs.redact import redact_value

_log = logging.getLogger(__name__)

GO_ON = frozenset({"login", "login_failed", "login_throttled", "logout", "stop", "delete", "deleted"})
"""What a full disk must not stand in the way of: somebody has to be able to come in, stop a run and free space. Of a
deletion the store keeps a record, too."""


class Audit:
    """Appends actions to `audit.jsonl` (0600), redacted; each record is on disk, whole, when `record` returns.

    Safe for many threads and for several processes at once.
    """

    def __init__(self, home: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = home / "audit.jsonl"
        self._clock = clock
        self._lock = threading.Lock()

    def record(self, action: str, **fields: object) -> None:
        """Write one action. ProblemsError(audit_failed): what cannot be recorded must not pass; nothing is written.

        Those of GO_ON pass, and stand in the server's own log instead.
        """
        line = json.dumps({"time": self._clock(), "action": action, **_clean(fields)}, ensure_ascii=False).encode(
            errors="replace"
        )
        try:
            with self._lock:
                self._append(line + b"\n")
        except OSError as error:
            reason = error.strerror or str(error)
            if action in GO_ON:
                _log.error("%s cannot be written (%s) and lacks: %s", self.path, reason, line.decode())
                return
            values = {"path": str(self.path), "reason": reason}
            raise ProblemsError([Problem(code="audit_failed", values=values)]) from error

    def _append(self, line: bytes) -> None:
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # closing lets go of it
            size = os.fstat(file).st_size
            # A machine that lost its power in the middle of a line: the next one must not be lost with it.
            line = line if not size or os.pread(file, 1, size - 1) == b"\n" else b"\n" + line
            try:
                if os.write(file, line) != len(line):
                    raise OSError(None, "only a part could be written")
                os.fsync(file)
            except OSError:
                with suppress(OSError):  # a part of ours; what others wrote stands before it
                    os.ftruncate(file, size)
                raise
        finally:
            os.close(file)


def _clean(fields: dict[str, object]) -> dict[str, object]:
    return {name: redact_value(value, name) for name, value in fields.items()}
