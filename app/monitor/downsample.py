"""Downsamples a curve and keeps its spikes: the lowest and the highest point of each bucket of steps."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

LIMIT = 1000
"""Points of a series in a full answer. A browser with 1500 points requests a full answer again."""
OVERLAY_LIMIT = 400
"""Points of a series of one of several runs in a chart, which then has up to eight times as many. Such a chart is some
400 pixels wide."""


def downsample(steps: ArrayLike, values: ArrayLike, limit: int = LIMIT) -> NDArray[np.intp]:
    """Return the indices, in order, of at most `limit` points. All points if there are no more than that.

    `steps` ascend, `values` are finite. Buckets are powers of two wide and begin at multiples of their width, so a
    curve that grows keeps the points it showed before. The first, the last, and every bucket's lowest and highest
    point stay. `limit` is at least 8.
    """
    x, y = np.asarray(steps), np.asarray(values)
    if len(x) <= limit:
        return np.arange(len(x))
    buckets = x >> _width_bits(x, limit)
    order = np.lexsort((y, buckets))  # by bucket, then by value
    starts = np.flatnonzero(np.diff(buckets[order], prepend=buckets[0] - 1))
    ends = np.append(starts[1:], len(x)) - 1
    indices = np.concatenate((order[starts], order[ends], [0, len(x) - 1]))
    return np.unique(indices)


def _width_bits(x: NDArray[np.int_], limit: int) -> int:
    bits = 0
    # two points per bucket, plus the first and the last point
    while 2 * (int(x[-1] >> bits) - int(x[0] >> bits) + 1) + 2 > limit:
        bits += 1
    return bits
