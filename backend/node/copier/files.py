"""The files of a copy, and their hashes."""

from __future__ import annotations

import hashlib
import os
from typing import Iterator

CHUNK = 1 << 20
PART = ".megaboard-part"
"""Name of the parts, or its end: files that have arrived but do not have their own names yet."""


def files_of(root: str, names: list[str] | None) -> Iterator[tuple[str, int]]:
    """Yield (path below root, bytes) of every file to copy. It follows links."""
    visited: set[str] = set()
    for start in [root] if names is None else [os.path.join(root, name) for name in names]:
        if os.path.isfile(start):
            yield os.path.relpath(start, root), os.path.getsize(start)
        for folder, folders, files in os.walk(start, followlinks=True):
            real = os.path.realpath(folder)
            folders[:] = sorted(name for name in folders if name != PART)
            if real in visited:  # a link to a folder above
                folders[:] = []
                continue
            visited.add(real)
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
