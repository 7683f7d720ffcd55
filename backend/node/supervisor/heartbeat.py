"""The interval of heartbeats, the figures of the host in them, and the members in the newest one."""

from __future__ import annotations

import json
import os
from typing import Any

HEARTBEAT_S = 2.0
HEARTBEATS_BYTES = 16 << 20
"""A larger heartbeat.jsonl is rotated, and replaces the older one. A run may last for weeks."""
LOGS = ("out.log", "rank*.log", "steps.rank*.jsonl")
"""Files that grow during a run."""


def host_facts(folder: str) -> dict[str, Any]:
    with open("/proc/meminfo") as file:
        memory = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in file if line.startswith("Mem")}
    disk = os.statvfs(folder)
    return {
        "load1": os.getloadavg()[0],
        "memory_used_mib": memory["MemTotal"] - memory["MemAvailable"],
        "memory_total_mib": memory["MemTotal"],
        "disk_free_mib": disk.f_bavail * disk.f_frsize >> 20,
    }


def last_members(folder: str) -> list[tuple[int, int]]:
    """Return the members in the newest heartbeat."""
    try:
        with open(f"{folder}/heartbeat.jsonl", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 18)))
            lines = file.read().splitlines()
        return [(pid, start) for pid, start in json.loads(lines[-1])["members"]]
    except (OSError, ValueError, IndexError):
        return []
