"""Figures that a rank measures at each step. entry.py and swift_entry.py call it."""

from __future__ import annotations

import os
from typing import Any

GIB = 1 << 30
MASKED = -100
"""Label of a token that is not trained: torch's ignore_index."""


def memory(torch: Any) -> dict[str, float]:
    """Return the allocator's peaks and its number of retries since the start. The mapping is empty on a CPU."""
    if not torch.cuda.is_available():
        return {}
    stats = torch.cuda.memory_stats()
    return {
        "allocated_gib": stats.get("allocated_bytes.all.peak", 0) / GIB,
        "reserved_gib": stats.get("reserved_bytes.all.peak", 0) / GIB,
        "alloc_retries": stats.get("num_alloc_retries", 0),
    }


def masked_rows(dataset: Any, most: int = 32) -> dict[str, tuple[int, int]]:
    """Return as `masked_rows` how many of the first rows have only masked labels (-100), and how many were read.

    The mapping is empty for data that cannot be read by index, or that has no labels.
    """
    masked = read = 0
    try:
        for index in range(min(most, len(dataset))):
            row = dataset[index]
            labels = [row[name] for name in ("labels", "chosen_labels") if name in row]
            if not labels:
                return {}
            read += 1
            masked += all(int(label) == MASKED for label in labels[0])
    except Exception:  # a streamed or a lazy data set may raise anything; the training itself will tell
        return {}
    return {"masked_rows": (masked, read)} if read else {}


def room(checkpoint: str) -> dict[str, int]:
    """Return the bytes of a checkpoint, the free bytes of its disk, and the inode of the output folder.

    The inode is equal on all nodes that share the disk. Only the first rank of a node returns figures. The mapping is
    empty without a checkpoint.
    """
    if not checkpoint or os.environ.get("LOCAL_RANK") != "0":
        return {}
    try:
        files = [os.path.join(folder, name) for folder, _, names in os.walk(checkpoint) for name in names]
        size, disk = sum(map(os.path.getsize, files)), os.statvfs(checkpoint)
        inode = os.stat(os.path.dirname(checkpoint)).st_ino
    except OSError:
        return {}
    return {"checkpoint_bytes": size, "free_bytes": disk.f_bavail * disk.f_frsize, "results_inode": inode}
