"""Fewer points of a curve that still show every spike: the lowest and the highest of each bucket of steps."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

LIMIT = 1000
"""Points a full answer holds a series; the browser asks again once increments brought it to 1500."""


def downsample(steps: ArrayLike, values: ArrayLike, limit: int = LIMIT) -> NDArray[np.intp]:
    """Indices, in order, of at most `limit` points; all of them when there are no more than that.

    `steps` ascend, `values` are finite. Buckets are powers of two wide and begin at multiples of their width, so a
    curve that grows keeps the points it showed before. The first, the last, and every bucket's lowest and highest
    point stay. `limit` is at least 8.
    """
    x, y = np.asarray(steps), np.asarray(values)
    if len(x) <= limit:
        return np.arange(len(x))
    buckets = x >> _width_bits(x, limit)
    order = np.lexsort((y, buckets))  # by bucket, within it by value
    starts = np.flatnonzero(np.diff(buckets[order], prepend=buckets[0] - 1))
    ends = np.append(starts[1:], len(x)) - 1
    kept = np.concatenate((order[starts], order[ends], [0, len(x) - 1]))
    return np.unique(kept)


def _width_bits(x: NDArray[np.int_], limit: int) -> int:
    bits = 0
    # two points a bucket, and both ends
    while 2 * (int(x[-1] >> bits) - int(x[0] >> bits) + 1) + 2 > limit:
        bits += 1
    return bits
