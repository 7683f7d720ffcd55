"""Destination folders of a copy. Files wait beside their folder until all have arrived and the disk has room."""

from __future__ import annotations

import os
import shutil
from typing import Any

from backend.node.own_folder import make_own

from .files import PART

RESERVE = 0.05
"""Part of a receiver's disk that stays free, at most RESERVE_BYTES."""
RESERVE_BYTES = 1 << 30


class CopyError(Exception):
    """A copy failed. `answer` has a code and its values for the user."""

    def __init__(self, code: str, **values: Any) -> None:
        super().__init__(f"{code} {values}")
        self.answer = {"code": code, **values}


class Destination:
    """One folder of a receiver, and the folder where its files wait until all have arrived."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.is_new = not os.path.lexists(root)
        # The parts are on the same disk as the folder itself, which may be a mount point.
        self.parts = f"{root}{PART}" if self.is_new else os.path.join(root, PART)
        self.above = root
        while not os.path.isdir(self.above):
            self.above = os.path.dirname(self.above)
        self.disk = os.stat(self.above).st_dev

    def check(self, path: str) -> None:
        """Raise CopyError for a path outside the folder."""
        if os.path.isabs(path) or ".." in path.split(os.sep):
            raise CopyError("copy_refused", status=path)

    def name(self, path: str) -> str:
        return os.path.join(self.root, path)

    def part_of(self, path: str) -> str:
        return os.path.join(self.parts, path)

    def make_parts(self) -> None:
        """Make the folder of the parts, or keep that of the last try. Raises OSError if it is not this user's."""
        make_own(self.parts)

    def settle(self, paths: list[str]) -> None:
        """Move the files to their names: a new folder at once, or else each file that does not exist yet."""
        if self.is_new and paths:
            self.remove_others({self.part_of(path) for path in paths})
            os.rename(self.parts, self.root)
            return
        for path in paths:
            target = self.name(path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.link(self.part_of(path), target)
        shutil.rmtree(self.parts, ignore_errors=True)

    def remove_others(self, parts: set[str]) -> None:
        """Remove all other parts: their files are no longer offered, and their hashes were not compared."""
        for folder, _, names in os.walk(self.parts):
            for name in names:
                if os.path.join(folder, name) not in parts:
                    os.unlink(os.path.join(folder, name))


def check_room(destinations: list[Destination], missing: list[dict[str, Any]]) -> None:
    """Raise CopyError unless the disks have room for the missing files."""
    needed: dict[int, int] = {}
    for file in missing:
        destination = destinations[file["root"]]
        part = destination.part_of(file["path"])
        received = os.path.getsize(part) if os.path.exists(part) else 0
        needed[destination.disk] = needed.get(destination.disk, 0) + max(0, file["size"] - received)
    for destination in destinations:
        total, _, free = shutil.disk_usage(destination.above)
        if destination.disk in needed and needed[destination.disk] + min(RESERVE * total, RESERVE_BYTES) > free:
            values = {"needed_gib": round(needed[destination.disk] / 2**30, 1), "free_gib": round(free / 2**30, 1)}
            raise CopyError("copy_no_room", path=destination.root, **values)
