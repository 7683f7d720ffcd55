"""Runs on a node, called by entry.py and swift_entry.py: what a rank measures beside its steps."""

from __future__ import annotations

import os
from typing import Any

GIB = 1 << 30


def memory(torch: Any) -> dict[str, float]:
    """Of the allocator since the start: its peaks, and how often it emptied its cache to find room; nothing on CPU."""
    if not torch.cuda.is_available():
        return {}
    stats = torch.cuda.memory_stats()
    return {
        "allocated_gib": stats.get("allocated_bytes.all.peak", 0) / GIB,
        "reserved_gib": stats.get("reserved_bytes.all.peak", 0) / GIB,
        "alloc_retries": stats.get("num_alloc_retries", 0),
    }


def room(checkpoint: str) -> dict[str, int]:
    """Bytes of a checkpoint that all ranks have written, of its disk's room, and the results' inode, which all nodes
    know them by that share the disk. Asked of a node's first rank; nothing where there is none, or not any more."""
    if not checkpoint or os.environ.get("LOCAL_RANK") != "0":
        return {}
    try:
        files = [os.path.join(place, name) for place, _, names in os.walk(checkpoint) for name in names]
        size, disk = sum(map(os.path.getsize, files)), os.statvfs(checkpoint)
        inode = os.stat(os.path.dirname(checkpoint)).st_ino
    except OSError:
        return {}
    return {"checkpoint_bytes": size, "free_bytes": disk.f_bavail * disk.f_frsize, "results_inode": inode}
