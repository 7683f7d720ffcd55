"""Reads on a node whether a tracker of experiments finds a log-in. No key leaves the node."""

from __future__ import annotations

import os
import urllib.parse

from backend.node.regular_file import read_regular

HOST = "api.wandb.ai"
LARGEST = 1 << 20


def has_wandb_login() -> bool:
    """Return whether wandb finds a key: a variable of the log-in shell, or the entry of its host in the netrc file.

    https://docs.wandb.ai/guides/track/environment-variables/
    """
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL", "")).hostname or HOST
    names = (os.environ.get("NETRC") or "~/.netrc", "~/.netrc", "~/_netrc")
    return any(host in words_of(os.path.expanduser(name)) for name in names)


def words_of(path: str) -> set[str]:
    """Return the words of a small text file; empty if it cannot be read."""
    try:
        return set(read_regular(path, LARGEST).decode("utf-8", "replace").split())
    except OSError:
        return set()
