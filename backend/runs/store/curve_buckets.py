"""Down-sampling of curves: many points become a few buckets, each with its first, lowest, highest and last value.

Pure functions on arrays. A bucket of width 2**bits begins at a multiple of its width. So buckets of one level merge
exactly into those of a wider level, and a point belongs to the same bucket whenever it arrives.
"""

import numpy as np
from numpy.typing import NDArray

SERIES = ("loss", "grad_norm", "learning_rate", "tokens_per_s", "step_s", "loss_smooth", "loss_bad")
"""Series in the order of a bucket. A change makes the stored buckets unreadable. It needs a migration that empties the
tables of curve_levels.py, so that they are filled again from the points."""
SMOOTHING = 0.8
"""Weight of the past in the smoothed loss."""
WINDOW = 64
"""Losses that the smoothed loss is computed from. All earlier ones together weigh less than a millionth."""

Floats = NDArray[np.float64]
"""Buckets: (bucket, series, first-lowest-highest-last, step-value); NaN where a series has no value. A logged metric
(metric_levels.py) has buckets of one series."""
Steps = NDArray[np.int64]

_STEP, _VALUE = range(2)
_PICKS = ((_STEP, np.fmin), (_VALUE, np.fmin), (_VALUE, np.fmax), (_STEP, np.fmax))
"""Keys that select first, lowest, highest and last. Among equal keys, the other one of step and value decides."""
_BY_STEP = np.array([True, False, False, True])
_SIGNS = np.array([1.0, 1.0, -1.0, -1.0])[:, None]
_WEIGHTS = SMOOTHING ** np.arange(WINDOW)


def of_points(steps: Steps, values: Floats) -> Floats:
    """Return one bucket per point; `values` has one column per series."""
    buckets = np.empty((*values.shape, 4, 2))
    buckets[..., _STEP] = np.where(np.isnan(values), np.nan, steps[:, None])[..., None]
    buckets[..., _VALUE] = values[..., None]
    return buckets


def join(numbers: Steps, buckets: Floats) -> tuple[Steps, Floats]:
    """Merge neighbours with the same number into one bucket; the numbers ascend."""
    starts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    if len(starts) + 1 == len(numbers):
        return numbers, buckets
    starts = np.concatenate(([0], starts))
    index = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(numbers))))
    joined = np.empty((len(starts), *buckets.shape[1:]))
    for kind, (key, pick) in enumerate(_PICKS):
        column = buckets[:, :, kind, :]
        best = pick.reduceat(column[..., key], starts)
        others = np.where(column[..., key] == best[index], column[..., 1 - key], np.nan)
        joined[:, :, kind, key] = best
        joined[:, :, kind, 1 - key] = pick.reduceat(others, starts)
    return numbers[starts], joined


def merge(some: Floats, others: Floats) -> Floats:
    """Merge each bucket of `some` with the one at the same index of `others`."""
    mine, theirs = some * _SIGNS, others * _SIGNS
    key, key_of_other = (np.where(_BY_STEP, side[..., _STEP], side[..., _VALUE]) for side in (mine, theirs))
    tie, tie_of_other = (np.where(_BY_STEP, side[..., _VALUE], side[..., _STEP]) for side in (mine, theirs))
    wins = (key < key_of_other) | ((key == key_of_other) & (tie <= tie_of_other)) | np.isnan(key_of_other)
    return np.where(wins[..., None], some, others)


def to_bytes(bucket: Floats) -> bytes:
    """Return one bucket in the form of the store."""
    return bucket.astype("<f8").tobytes()


def from_bytes(rows: list[bytes], series: int = len(SERIES)) -> Floats:
    """Return the buckets of the stored form."""
    return np.frombuffer(b"".join(rows), "<f8").reshape(-1, series, 4, 2)


def candidates(buckets: Floats, series: int) -> tuple[Steps, Floats]:
    """Return the points of one series in the buckets, by step, each once."""
    flat = buckets[:, series].reshape(-1, 2)
    flat = flat[~np.isnan(flat[:, _STEP])]
    steps, first_indices = np.unique(flat[:, _STEP].astype(np.int64), return_index=True)
    return steps, flat[first_indices, _VALUE]


def within(buckets: Floats, first: int, last: int) -> Floats:
    """Return the buckets with the points of the steps `first` to `last`. Extremes at other steps are lost."""
    outside = (buckets[..., _STEP] < first) | (buckets[..., _STEP] > last)
    return np.where(outside[..., None], np.nan, buckets)


def smooth(losses: Floats, has_loss: NDArray[np.bool_], before: Floats) -> tuple[Floats, Floats]:
    """Return (smoothed loss, mark of a loss that is not finite) of points in the order of their steps; NaN elsewhere.

    `has_loss`: whether a point has a loss. `before`: the newest finite losses before these points, oldest first.
    """
    is_finite = has_loss & np.isfinite(losses)
    # The leading zero means "none yet".
    finite = np.concatenate(([0.0], before, losses[is_finite]))
    means = np.convolve(finite, _WEIGHTS)[: len(finite)]
    means[1:] *= (1 - SMOOTHING) / (1 - SMOOTHING ** np.minimum(WINDOW, np.arange(1, len(means))))
    shown = means[len(before) + np.cumsum(is_finite)]
    return np.where(is_finite, shown, np.nan), np.where(has_loss & ~is_finite, shown, np.nan)
