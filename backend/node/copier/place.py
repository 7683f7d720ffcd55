"""Where what is taken comes to be: beside its folder until all is there, and only where the disk has room."""

from __future__ import annotations

import os
import shutil
from typing import Any

from .files import PART

SPARE = 0.05
"""Part of a taker's disk that stays free, at most SPARE_BYTES."""
SPARE_BYTES = 1 << 30


class CopyError(Exception):
    """Why a taker gives up; `code` and values for the user."""

    def __init__(self, code: str, **values: Any) -> None:
        super().__init__(f"{code} {values}")
        self.answer = {"code": code, **values}


class Destination:
    """One folder of a taker: where its files come to be, and where they wait until all are there."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.is_new = not os.path.lexists(root)
        # On the same disk as the folder itself, which may be a mount of its own.
        self.parts = f"{root}{PART}" if self.is_new else os.path.join(root, PART)
        self.above = root
        while not os.path.isdir(self.above):
            self.above = os.path.dirname(self.above)
        self.disk = os.stat(self.above).st_dev

    def check(self, path: str) -> None:
        """A giver has no say over what lies outside."""
        if os.path.isabs(path) or ".." in path.split(os.sep):
            raise CopyError("copy_refused", status=path)

    def name(self, path: str) -> str:
        return os.path.join(self.root, path)

    def part_of(self, path: str) -> str:
        return os.path.join(self.parts, path)

    def settle(self, paths: list[str]) -> None:
        """Give the files their names: the whole folder at once where there was none, else each where nothing is."""
        if self.is_new and paths:
            self.forget_others({self.part_of(path) for path in paths})
            os.rename(self.parts, self.root)
            return
        for path in paths:
            target = self.name(path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.link(self.part_of(path), target)
        shutil.rmtree(self.parts, ignore_errors=True)

    def forget_others(self, parts: set[str]) -> None:
        """Remove what an earlier try took of files that are no longer given: nobody has compared it."""
        for folder, _, names in os.walk(self.parts):
            for name in names:
                if os.path.join(folder, name) not in parts:
                    os.unlink(os.path.join(folder, name))


def make_room(places: list[Destination], lacking: list[dict[str, Any]]) -> None:
    """CopyError unless the disks hold what is to come."""
    needed: dict[int, int] = {}
    for file in lacking:
        place = places[file["root"]]
        part = place.part_of(file["path"])
        there = os.path.getsize(part) if os.path.exists(part) else 0
        needed[place.disk] = needed.get(place.disk, 0) + max(0, file["size"] - there)
    for place in places:
        total, _, free = shutil.disk_usage(place.above)
        if place.disk in needed and needed[place.disk] + min(SPARE * total, SPARE_BYTES) > free:
            values = {"needed_gib": round(needed[place.disk] / 2**30, 1), "free_gib": round(free / 2**30, 1)}
            raise CopyError("copy_no_room", path=place.root, **values)
