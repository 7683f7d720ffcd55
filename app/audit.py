"""The audit log: who did what when, one JSON object a line, only ever appended to."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from backend.jobs.redact import redact_value


class Audit:
    """Appends actions to `audit.jsonl` (0600), redacted; each record is on disk when `record` returns."""

    def __init__(self, home: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = home / "audit.jsonl"
        self._clock = clock
        self._lock = threading.Lock()

    def record(self, action: str, **fields: object) -> None:
        """Write one action; OSError when the disk refuses, because an action that cannot be recorded must not pass."""
        line = json.dumps({"time": self._clock(), "action": action, **_clean(fields)}, ensure_ascii=False)
        with self._lock:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, line.encode() + b"\n")
                os.fsync(file)
            finally:
                os.close(file)


def _clean(fields: dict[str, object]) -> dict[str, object]:
    return {name: redact_value(value, name) for name, value in fields.items()}
