"""The audit log: one JSON object a line for each action. Lines are only appended."""

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

UNBLOCKED = frozenset({"login", "login_failed", "login_throttled", "logout", "stop", "delete", "deleted"})
"""Actions that are allowed on a full disk: an operator must be able to log in, stop a run and free space. The store
also records deletions."""


class Audit:
    """Appends redacted actions to `audit.jsonl` (0600). A record is completely on disk when `record` returns.

    Safe for many threads and several processes.
    """

    def __init__(self, home: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = home / "audit.jsonl"
        self._clock = clock
        self._lock = threading.Lock()

    def record(self, action: str, **fields: object) -> None:
        """Record one action. Raises ProblemsError(audit_failed) if it cannot be recorded. Then nothing is written.

        Actions in UNBLOCKED raise nothing. The server's own log shows them instead.
        """
        line = json.dumps({"time": self._clock(), "action": action, **_clean(fields)}, ensure_ascii=False).encode(
            errors="replace"
        )
        try:
            with self._lock:
                self._append(line + b"\n")
        except OSError as error:
            reason = error.strerror or str(error)
            if action in UNBLOCKED:
                _log.error("%s cannot be written (%s); not recorded: %s", self.path, reason, line.decode())
                return
            values = {"path": str(self.path), "reason": reason}
            raise ProblemsError([Problem(code="audit_failed", values=values)]) from error

    def _append(self, line: bytes) -> None:
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # close() releases it
            size = os.fstat(file).st_size
            # A power loss may have cut the last line. The new line must not be appended to it.
            line = line if not size or os.pread(file, 1, size - 1) == b"\n" else b"\n" + line
            try:
                if os.write(file, line) != len(line):
                    raise OSError(None, "only a part could be written")
                os.fsync(file)
            except OSError:
                with suppress(OSError):  # removes only this record's part
                    os.ftruncate(file, size)
                raise
        finally:
            os.close(file)


def _clean(fields: dict[str, object]) -> dict[str, object]:
    return {name: redact_value(value, name) for name, value in fields.items()}
