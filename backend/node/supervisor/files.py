"""Atomic files, and a reserve on the disk for the last records of a run."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from typing import Any

PROTOCOL = 1
RESERVE_BYTES = 64 << 10
"""Reserved for the last records of a run whose disk is full."""


def write_json(path: str, content: dict[str, Any]) -> None:
    """Write a file atomically. Readers see the old file or the whole new file."""
    part = f"{path}.{secrets.token_hex(4)}"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({"protocol": PROTOCOL, **content}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path) as file:
            content = json.load(file)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def is_full(folder: str) -> bool:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < RESERVE_BYTES


def free_reserve(folder: str) -> None:
    """Free the reserve for the last records on a full disk."""
    if os.path.exists(f"{folder}/reserve"):
        os.unlink(f"{folder}/reserve")


def say(*words: object) -> None:
    """Write to the log, if the disk has room. Nothing may depend on the log."""
    with contextlib.suppress(OSError):
        os.write(1, (" ".join(map(str, words)) + "\n").encode())
