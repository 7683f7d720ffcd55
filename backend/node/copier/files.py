"""The files of a copy, and their hashes."""

from __future__ import annotations

import errno
import hashlib
import os
from typing import Iterator

CHUNK = 1 << 20
PART = ".megaboard-part"
"""Name of the parts, or its end: files that have arrived but do not have their own names yet."""


def files_of(root: str, names: list[str] | None) -> Iterator[tuple[str, int]]:
    """Yield (path below root, bytes) of every file to copy. It follows links; OSError for those of check_link."""
    visited: set[str] = set()
    for start in [root] if names is None else [os.path.join(root, name) for name in names]:
        check_link(start)
        if os.path.isfile(start):
            yield os.path.relpath(start, root), os.path.getsize(start)
        for folder, folders, files in os.walk(start, followlinks=True):
            real = os.path.realpath(folder)
            folders[:] = sorted(name for name in folders if name != PART)
            if real in visited:  # a link to a folder above
                folders[:] = []
                continue
            visited.add(real)
            for name in folders:
                check_link(os.path.join(folder, name))
            for name in sorted(files):
                path = os.path.join(folder, name)
                check_link(path)
                if os.path.isfile(path):
                    yield os.path.relpath(path, root), os.path.getsize(path)


def check_link(path: str) -> None:
    """Raise OSError for a link that another user made to a file of this user: he may not be able to read the file."""
    if not os.path.islink(path) or not os.path.exists(path):
        return
    maker, owner, user = os.lstat(path).st_uid, os.stat(path).st_uid, os.geteuid()
    if owner == user and maker not in (0, user):
        raise OSError(errno.EPERM, "another user made this link to a file of yours", path)


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(CHUNK), b""):
            digest.update(block)
    return digest.hexdigest()
