"""Packages of an environment: how many a lock names, and those that an interrupted installer left unfinished."""

from __future__ import annotations

import csv
import glob
import os
import re
import shutil


def count_pins(lock: str) -> int:
    with open(lock) as file:
        return sum(1 for line in file if re.match(r"[A-Za-z0-9].*==", line))


def remove_unfinished(folder: str) -> None:
    """Remove the metadata of packages that an interrupted installer left, so that they are installed again."""
    for metadata in glob.glob(os.path.join(glob.escape(folder), "lib", "python*", "site-packages", "*.dist-info")):
        if not is_whole(metadata):
            print("megaboard: unfinished:", os.path.basename(metadata), flush=True)
            shutil.rmtree(metadata)


def is_whole(metadata: str) -> bool:
    """Return whether every file of a package is there with its size.

    That RECORD exists proves nothing: uv first copies the one of the wheel. It names no size for itself and for
    compiled files.
    """
    try:
        with open(os.path.join(metadata, "RECORD"), newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) == 3]
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    parent = os.path.dirname(metadata)
    return bool(rows) and all(
        _size(os.path.join(parent, path)) == int(size) for path, _, size in rows if size.isdigit()
    )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
