"""What giving and taking have in common: which files are meant, and their hashes."""

from __future__ import annotations

import hashlib
import os
from typing import Iterator

CHUNK = 1 << 20
PART = ".megaboard-part"
"""Ends the name of what was taken and is not in its place yet."""


def files_of(root: str, names: list[str] | None) -> Iterator[tuple[str, int]]:
    """(path below root, bytes) of every file that is meant, what links lead to included."""
    seen: set[str] = set()
    for start in [root] if names is None else [os.path.join(root, name) for name in names]:
        if os.path.isfile(start):
            yield os.path.relpath(start, root), os.path.getsize(start)
        for folder, folders, files in os.walk(start, followlinks=True):
            real = os.path.realpath(folder)
            folders[:] = sorted(one for one in folders if one != PART)
            if real in seen:  # a link that leads back up
                folders[:] = []
                continue
            seen.add(real)
            for name in sorted(files):
                path = os.path.join(folder, name)
                if os.path.isfile(path):
                    yield os.path.relpath(path, root), os.path.getsize(path)


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(CHUNK), b""):
            digest.update(block)
    return digest.hexdigest()
