"""Replaces secrets in the logs of a run with asterisks, on the node, where the values are known."""

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
    """Overwrites the secrets of one run in its logs; `clean` holds the number of bytes checked in each log.

    A secret is replaced with as many asterisks, so offsets stay valid. Collectors read only up to `clean`.
    """

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.values = secret_values(spec)
        self.pattern = re.compile(b"|".join(map(re.escape, self.values)))
        self.clean = {}  # type: dict[str, int]
        self.refused = set()  # type: set[str]

    def mask(self, *, ended: bool = False) -> None:
        """Check the new bytes. `ended`: no process writes any more, so no secret is half written."""
        if not self.values:
            return
        for path in (path for logs in MASKED_LOGS for path in glob.glob(f"{glob.escape(self.folder)}/{logs}")):
            try:
                self._mask_file(path, ended)
            except OSError as error:  # a log that somebody removed: the others are masked all the same
                if path not in self.refused:
                    self.refused.add(path)
                    say("a log cannot be masked:", error)

    def _mask_file(self, path: str, ended: bool) -> None:
        name = os.path.basename(path)
        # A FIFO or a device in place of a log would wait for ever.
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
                found = list(self.pattern.finditer(data))
                done = len(data) if ended and is_last else complete_bytes(data, self.values)
                for match in reversed(found):
                    if match.start() < done < match.end():  # its end may be the beginning of another secret
                        done = match.start()
                for match in found:
                    if match.end() <= done:
                        os.pwrite(handle, b"*" * len(match[0]), clean + match.start())
                clean += done
                self.clean[name] = clean
                if is_last or not done:
                    return
        finally:
            os.close(handle)


def complete_bytes(data: bytes, values: list[bytes]) -> int:
    """The number of bytes that cannot belong to a secret that is only half written."""
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
