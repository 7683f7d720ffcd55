"""A disk that is really full: a small file system in memory."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class FullDisk:
    """A mounted folder that a test can fill to its last byte and empty again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 16, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def free(self) -> None:
        self._filler.unlink()


@contextmanager
def full_disk(folder: Path) -> Iterator[FullDisk]:
    """Yield a small file system at `folder`. Skip the test if it cannot be mounted."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(folder)]
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {process.stderr.strip()}")
    try:
        yield FullDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Mount the folder read-only, also for root. Skip the test if it cannot be mounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting a folder read-only needs root")
    process = subprocess.run(["mount", "--bind", str(folder), str(folder)], capture_output=True, text=True)
    if process.returncode:
        pytest.skip(f"a folder cannot be mounted here: {process.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
