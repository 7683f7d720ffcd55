"""Readers of files that a user named, on a node. They read only regular files, and only up to a limit of bytes.

node_programs.py puts this module before the programs that need it. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import IO, Any

MOST_JSON_BYTES = 16 << 20
"""Maximum size of a JSON file. Descriptions of data sets and indexes of checkpoints have a few MiB at most. The
trainer's state of a long run and some tokenizers are larger. checkpoint_files.py reads only parts of these files."""


def full_path(path: str) -> str:
    """Return the absolute path, also of a path below `~`."""
    return os.path.abspath(os.path.expanduser(path))


def open_regular(path: str) -> IO[bytes]:
    """Open a file for reading. Raises OSError at once for a folder, a device or a pipe."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "no regular file", path)
    return open(handle, "rb")


def read_regular(path: str, most: int) -> bytes:
    """Return the whole file. Raises OSError if it has more than `most` bytes."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", path)
    return data


def read_json(path: str, most: int = MOST_JSON_BYTES) -> Any:
    """Return the value of a JSON file. Raises OSError, and ValueError if it is not JSON or is nested too deeply."""
    try:
        return json.loads(read_regular(path, most))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
