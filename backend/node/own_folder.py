"""Folders beside results, where files wait until all are there. Other users may write on such a disk, too.

node_programs.py puts this module before the programs that need it. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile


def make_own(folder: str) -> None:
    """Make a folder that only this user changes, or keep the one of an earlier try.

    Raises OSError for a link and for a folder of another user: links in them could lead to any file of this user.
    """
    above = os.path.dirname(folder)
    os.makedirs(above, exist_ok=True)
    try:
        os.mkdir(folder, 0o755)
    except FileExistsError:
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EEXIST, "a link or a file is in the way", folder) from None
        if status.st_uid not in (os.geteuid(), owner_of_new(above)):
            raise OSError(errno.EPERM, "the folder belongs to another user", folder) from None


def owner_of_new(folder: str) -> int:
    """Return the owner of what this user makes in a folder. A file server may map users to others."""
    probe = tempfile.mkdtemp(prefix=".megaboard-", dir=folder)
    try:
        return os.lstat(probe).st_uid
    finally:
        os.rmdir(probe)
