"""Lock of a node: only one run uses a node at a time."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import socket
import time
from typing import Any, Iterator

from .files import read_json, write_json
from .processes import boot_id, find_process, members

MUTEX_S = 10.0
"""Longest wait for the mutex. A change of a lock takes milliseconds."""


def holder(lock: str) -> dict[str, Any] | None:
    """Return the lock's content while its supervisor or any process of its run lives."""
    content = read_json(lock)
    if content is None or content.get("boot") != boot_id():
        return None
    alive = find_process(content["pid"], content["start"]) or members(content["mark"])
    return content if alive else None


def take_lock(lock: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """Lock the node for one run, or return the holder of the lock. A lock file appears whole."""
    os.makedirs(os.path.dirname(lock), mode=0o700, exist_ok=True)
    new = f"{lock}.{secrets.token_hex(4)}"
    write_json(new, content)
    try:
        with mutex(lock):
            other = holder(lock)
            if other:
                return other
            os.replace(new, lock)  # replaces a stale lock; some disks have no hard links
            return None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)


def release_lock(lock: str, mark: str) -> None:
    """Remove the lock if this run holds it."""
    with mutex(lock):
        if (read_json(lock) or {}).get("mark") == mark:
            os.unlink(lock)


@contextlib.contextmanager
def mutex(lock: str) -> Iterator[None]:
    """Let one process of the node at a time read and change the lock.

    The mutex is an abstract socket name, which the kernel releases when its process dies. Some shared disks cannot lock
    files. A process without the mutex after MUTEX_S goes on without it, because a lost record of an end would be worse.
    """
    name = hashlib.sha256(os.path.abspath(lock).encode()).hexdigest()
    with socket.socket(socket.AF_UNIX) as name_owner:
        deadline = time.monotonic() + MUTEX_S
        while time.monotonic() < deadline:
            try:
                name_owner.bind(f"\0megaboard-{os.getuid()}-{name}")
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    break
            time.sleep(0.005)
        yield
