"""The number of connections that leaves enough file descriptors for nodes and the database."""

import os
import resource

WANTED = 4096
"""The limit on open files is raised to this where the system lets us; many systems begin with 1,024 or 256."""

MOST_CONNECTIONS = 400
"""Enough for fifty open pages. Well below 1,024, above which some libraries cannot wait for a descriptor."""

KEPT_BACK = 192
"""For nodes (a handful each), the database, logs and files on their way out."""


def raise_limit() -> int:
    """Raise this process's limit on open files as far as allowed and useful, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else WANTED
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def count_open() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/dev/fd"))


def connections_for(limit: int, already_open: int) -> int:
    """How many connections fit below the limit. Each may also read a file; some descriptors are reserved."""
    left = max(0, limit - already_open)
    kept = min(KEPT_BACK, left // 2)
    return max(1, min(MOST_CONNECTIONS, (left - kept) // 2))
