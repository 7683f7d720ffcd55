"""The number of processes of a run that the kernel killed because memory ran out.

The kernel counts them for each control group, and every user can read the count: `oom_kill` in memory.events
(https://docs.kernel.org/admin-guide/cgroup-v2.html), or in memory.oom_control of version 1.
"""

from __future__ import annotations

import re

CGROUPS = "/sys/fs/cgroup"
OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomKills:
    """The kills in the control group of a process since this object was made."""

    def __init__(self, pid: int) -> None:
        self.file = counter_of(pid)
        self.before = kills_in(self.file)

    def new(self) -> int:
        """Return the number of new kills; 0 where the kernel has no count."""
        now = kills_in(self.file)
        return 0 if now is None or self.before is None else max(0, now - self.before)


def counter_of(pid: int) -> str:
    """Return the path of the file with the count; empty if there is none."""
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    for line in lines:
        number, controllers, path = line.split(":", 2)
        path = path.rstrip("/")
        if number == "0" and not controllers:
            candidates = [f"{CGROUPS}{path}/memory.events", f"{CGROUPS}/unified{path}/memory.events"]
        elif "memory" in controllers.split(","):
            # A container may see its own group as the root.
            candidates = [f"{CGROUPS}/memory{path}/memory.oom_control", f"{CGROUPS}/memory/memory.oom_control"]
        else:
            continue
        for candidate in candidates:
            if kills_in(candidate) is not None:
                return candidate
    return ""


def kills_in(path: str) -> int | None:
    """Return the count in a file; None if it cannot be read or has none."""
    try:
        with open(path) as file:
            match = OOM_KILL.search(file.read())
    except OSError:
        return None
    return int(match[1]) if match else None
