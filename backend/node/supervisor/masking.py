"""Masking of secrets in the logs of a run. It runs on the node, which has the values of the secrets."""

from __future__ import annotations

import glob
import json
import os
import re
from typing import Any

from .files import say

MASKED_LOGS = ("out.log", "rank*.log")
CHUNK_BYTES = 1 << 20
CHUNKS_AT_ONCE = 16
"""Bytes of a log per step, before the supervisor scans the run again."""


class LogMask:
    """Overwrite the secrets of one run in its logs. `clean` has the number of checked bytes of each log.

    Each byte of a secret becomes an asterisk, so offsets stay valid. Collectors read only up to `clean`.
    """

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.values = secret_values(spec)
        self.pattern = re.compile(b"|".join(map(re.escape, self.values)))
        self.clean = {}  # type: dict[str, int]
        self.refused = set()  # type: set[str]

    def mask(self, *, ended: bool = False) -> None:
        """Check the new bytes. With `ended` no process writes any more, so no secret is half written."""
        if not self.values:
            return
        for path in (path for logs in MASKED_LOGS for path in glob.glob(f"{glob.escape(self.folder)}/{logs}")):
            try:
                self._mask_file(path, ended)
            except OSError as error:  # somebody removed this log; the other logs are still masked
                if path not in self.refused:
                    self.refused.add(path)
                    say("a log cannot be masked:", error)

    def _mask_file(self, path: str, ended: bool) -> None:
        name = os.path.basename(path)
        # A FIFO or a device in place of a log would block forever.
        handle = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            clean = self.clean.get(name, 0)
            if os.fstat(handle).st_size < clean:  # truncated or started again
                clean = 0
            chunks = 0
            while ended or chunks < CHUNKS_AT_ONCE:
                chunks += 1
                data = os.pread(handle, CHUNK_BYTES, clean)
                is_last = len(data) < CHUNK_BYTES
                matches = list(self.pattern.finditer(data))
                done = len(data) if ended and is_last else complete_bytes(data, self.values)
                for match in reversed(matches):
                    if match.start() < done < match.end():  # its end may be the start of another secret
                        done = match.start()
                for match in matches:
                    if match.end() <= done:
                        os.pwrite(handle, b"*" * len(match[0]), clean + match.start())
                clean += done
                self.clean[name] = clean
                if is_last or not done:
                    return
        finally:
            os.close(handle)


def complete_bytes(data: bytes, values: list[bytes]) -> int:
    """Return the number of bytes before a secret that may be only half written."""
    longest = max(map(len, values), default=0)
    for start in range(max(0, len(data) - longest + 1), len(data)):
        if any(value.startswith(data[start:]) for value in values):
            return start
    return len(data)


def secret_values(spec: dict[str, Any]) -> list[bytes]:
    """Return the secrets of the run, the longest first, because one may begin with another."""
    if not spec.get("secrets"):
        return []
    with open(spec["secrets"]) as file:
        return sorted((value.encode() for value in json.load(file).values()), key=len, reverse=True)
