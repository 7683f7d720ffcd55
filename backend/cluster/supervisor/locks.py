"""A node works for one run at a time."""

from __future__ import annotations

import os
import secrets
from typing import Any

from .files import read_json, write_json
from .processes import boot_id, find_process, members


def holder(lock: str) -> dict[str, Any] | None:
    """Who holds the node: the lock's content while its supervisor or any process of its run lives."""
    content = read_json(lock)
    if content is None or content.get("boot") != boot_id():
        return None
    alive = find_process(content["pid"], content["start"]) or members(content["mark"])
    return content if alive else None


def take_lock(lock: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """Take the node for one run, or answer who holds it. A lock appears whole, by a link, never half written."""
    os.makedirs(os.path.dirname(lock), mode=0o700, exist_ok=True)
    mine = f"{lock}.{secrets.token_hex(4)}"
    write_json(mine, content)
    try:
        while True:
            try:
                os.link(mine, lock)
                return None
            except FileExistsError:
                held = holder(lock)
                if held:
                    return held
            stale = f"{mine}.stale"
            os.replace(lock, stale)
            # Another starter may have replaced the stale lock since we looked: then it is his, and goes back.
            if holder(stale):
                os.link(stale, lock)
            os.unlink(stale)
    finally:
        os.unlink(mine)


def release_lock(lock: str, mark: str) -> None:
    """Only one's own."""
    if (read_json(lock) or {}).get("mark") == mark:
        os.unlink(lock)
