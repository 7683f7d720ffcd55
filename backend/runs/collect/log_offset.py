"""Chooses the offset to continue from in a log that grows faster than it is read. Only its newest bytes are kept.

A node's end counts only after everything else was read, and a gigabyte takes minutes.
"""

from backend.cluster.node import Node

FARTHEST = 1 << 60
"""Upper limit of a file's size. It ends the search when a server reports bytes at every offset."""


def offset_to_read(node: Node, path: str, offset: int, *, keep: int, grain: int) -> int:
    """Return an offset with `keep` to `keep + grain` bytes after it, or `offset` when fewer bytes follow.

    Raises NodeError.

    A node reports no sizes. About twenty reads, each of one byte, find the end of a file of any size.
    """
    distance, step = 0, keep
    while step < FARTHEST and node.read(path, offset + distance + step, 1):
        distance += step
        step *= 2
    while distance and step > grain:
        step //= 2
        if node.read(path, offset + distance + step, 1):
            distance += step
    return offset + max(0, distance - keep)
