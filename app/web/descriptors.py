"""Limits on file descriptors. Connections of the page must leave enough for nodes and the database."""

import os
import resource

OPEN_FILES = 4096
"""The server raises its limit on open files to this, if the system allows it. Common defaults are 1,024 and 256."""

MOST_CONNECTIONS = 400
"""Enough for fifty open pages. Well below 1,024, above which some libraries cannot wait for a descriptor."""

RESERVED = 192
"""Descriptors for nodes (a few each), the database, logs and files that are being sent."""


def raise_limit() -> int:
    """Raise the limit on open files of this process up to OPEN_FILES, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return soft if soft != resource.RLIM_INFINITY else OPEN_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def count_open() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/dev/fd"))


def connections_for(limit: int, already_open: int) -> int:
    """Return the number of connections that fit below the limit. A connection may need two descriptors."""
    left = max(0, limit - already_open)
    reserved = min(RESERVED, left // 2)
    return max(1, min(MOST_CONNECTIONS, (left - reserved) // 2))
