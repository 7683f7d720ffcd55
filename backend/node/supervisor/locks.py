"""A node works for one run at a time."""

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

TURN_S = 10.0
"""Reading and changing a lock takes milliseconds."""


def holder(lock: str) -> dict[str, Any] | None:
    """Return the lock's content while its supervisor or any process of its run lives."""
    content = read_json(lock)
    if content is None or content.get("boot") != boot_id():
        return None
    alive = find_process(content["pid"], content["start"]) or members(content["mark"])
    return content if alive else None


def take_lock(lock: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """Lock the node for one run, or return its holder. A lock file appears whole, never half written."""
    os.makedirs(os.path.dirname(lock), mode=0o700, exist_ok=True)
    mine = f"{lock}.{secrets.token_hex(4)}"
    write_json(mine, content)
    try:
        with turn(lock):
            held = holder(lock)
            if held:
                return held
            os.replace(mine, lock)  # a stale one too; not every disk has hard links
            return None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(mine)


def release_lock(lock: str, mark: str) -> None:
    """Remove the lock if it is this run's own."""
    with turn(lock):
        if (read_json(lock) or {}).get("mark") == mark:
            os.unlink(lock)


@contextlib.contextmanager
def turn(lock: str) -> Iterator[None]:
    """One process of the node at a time: between a look at the lock and what follows from it nobody changes it.

    By a name that the kernel gives to one, and takes back from whoever dies: not every shared disk can lock a file.
    Who does not get it within TURN_S goes on without: an end that is not recorded would be worse.
    """
    name = hashlib.sha256(os.path.abspath(lock).encode()).hexdigest()
    with socket.socket(socket.AF_UNIX) as guard:
        deadline = time.monotonic() + TURN_S
        while time.monotonic() < deadline:
            try:
                guard.bind(f"\0megaboard-{os.getuid()}-{name}")
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    break
            time.sleep(0.005)
        yield
