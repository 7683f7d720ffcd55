"""The folder of an environment: its marker file, its lock, and the space on its disk."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import contextmanager
from typing import Any, Iterator

MARKER = ".megaboard-environment.json"
RESERVE_SPACE = 1 << 30
"""Part of the disk that stays free."""
RECORD_BYTES = 64 << 10


class InstallError(Exception):
    """The environment cannot be made. `answer` has a code and its values for the user."""

    def __init__(self, code: str, **values: Any) -> None:
        super().__init__(f"{code} {values}")
        self.answer = {"code": code, **values}


def write_record(path: str, content: dict[str, Any]) -> None:
    """Write a JSON file atomically and durably, into the space that `reserve_record` holds for it."""
    part = f"{path}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        json.dump(content, file)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def reserve_record(path: str) -> None:
    """Take the space of a record now, so that it can be written when the disk is full."""
    with open(os.open(f"{path}.part", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(" " * RECORD_BYTES)


def read_marker(folder: str) -> dict[str, Any] | None:
    """Return the content of the marker file. None: there is none, so the folder is not ours."""
    try:
        with open(os.path.join(folder, MARKER)) as file:
            content = json.load(file)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def state_of(folder: str, digest: str) -> str:
    """Return `none`, `ready`, `part` (begun by us, not finished), or `foreign` (not made by us)."""
    if not os.path.lexists(folder) or (os.path.isdir(folder) and not os.listdir(folder)):
        return "none"
    marker = read_marker(folder)
    if marker is None or marker.get("digest") != digest:
        return "foreign"
    is_whole = marker.get("state") == "ready" and os.access(os.path.join(folder, "bin", "python"), os.X_OK)
    return "ready" if is_whole else "part"


def above(path: str) -> str:
    """Return the nearest folder above `path` that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def free_bytes(path: str) -> int:
    return shutil.disk_usage(above(path)).free


def check_space(folder: str, needed: int) -> None:
    """Raise InstallError unless the disk of `folder` has room for `needed` bytes."""
    if free_bytes(folder) < needed + RESERVE_SPACE:
        raise InstallError("install_no_room", path=folder, **need_and_room(folder, needed))


def need_and_room(folder: str, needed: int) -> dict[str, float]:
    """Return what an installation of `needed` bytes needs, and what the disk of `folder` has."""
    return {
        "needed_gib": round((needed + RESERVE_SPACE) / 2**30, 1),
        "free_gib": round(free_bytes(folder) / 2**30, 1),
    }


@contextmanager
def only_installer(folder: str) -> Iterator[None]:
    """Hold the lock of an environment. A second installer, also on another node of a shared disk, waits for it."""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    path = os.path.join(os.path.dirname(folder), f".{os.path.basename(folder)}.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("megaboard: another installer works on this environment; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
