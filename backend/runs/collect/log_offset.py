"""Where to read on in a log that grew faster than it is read: no more of it is kept than its newest bytes.

A node's end counts only when everything else was read, and a gigabyte takes minutes.
"""

from backend.cluster.node import Node

FARTHEST = 1 << 60
"""No file is larger; a server that says otherwise for ever is asked no more."""


def read_on_at(node: Node, path: str, offset: int, *, keep: int, grain: int) -> int:
    """The offset behind which `keep` bytes are left, or up to `grain` more; `offset` where no more are. NodeError.

    A node tells no sizes; whether there is a byte somewhere is asked some twenty times for a file of any size.
    """
    far, step = 0, keep
    while step < FARTHEST and node.read(path, offset + far + step, 1):
        far += step
        step *= 2
    while far and step > grain:
        step //= 2
        if node.read(path, offset + far + step, 1):
            far += step
    return offset + max(0, far - keep)
