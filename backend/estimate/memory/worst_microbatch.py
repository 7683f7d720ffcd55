"""The longest micro-batch of a run if samples are shorter than cutoff_len. The memory estimate is for it."""

from functools import lru_cache
from math import exp
from statistics import NormalDist

import numpy as np
from numpy import ndarray

from backend.estimate.array_ops import Number, larger, smaller
from backend.job.batch import padding
from backend.job.job import Job
from backend.job.lengths import cut_mean

DOUBLINGS = np.arange(25)
"""Base-2 logarithms of the numbers of draws whose expected maximum is computed; others are interpolated."""


def worst_microbatch_length(job: Job) -> Number:
    """Return the tokens of a mean sequence in the longest micro-batch of a job; its sizes may be arrays.

    They are cutoff_len, unless sequences are concatenated and the number and the mean length of samples are known.
    """
    training = job.training
    if padding(job) != "nothing" or training.packing or not training.samples or training.sample_tokens is None:
        return job.longest_sequence
    draws = training.samples * training.num_train_epochs
    return worst_length(training.sample_tokens, training.cutoff_len, training.micro_batch_size, draws)


def worst_length(mean: float, cutoff: int, count: Number, draws: float) -> Number:
    """Return the tokens of a mean sequence in the longest of `draws` / `count` micro-batches of `count` samples each.

    It is rare that several of the longest samples are in one micro-batch. Sums of exponential lengths are nearly gamma,
    with the quantile of Wilson and Hilferty 1931, The Distribution of Chi-Square. The result is at least one sample of
    cutoff_len among others of mean length: of 149 data sets every fourth has longer samples than the longest of an
    exponential distribution, though only every tenth has a larger deviation (ms-swift
    docs/source_en/Instruction/Supported-models-and-datasets.md). The sequences of a pair count as equally long.
    """
    if mean >= cutoff:
        return cutoff
    cut = cut_mean(mean, cutoff)
    square = 2 * mean * (cut - cutoff * exp(-cutoff / mean))
    shape = count * cut**2 / (square - cut**2)
    gamma = cut * (1 - 1 / (9 * shape) + expected_maximum(draws / count) / (3 * shape**0.5)) ** 3
    return smaller(cutoff, larger(gamma, cut + (cutoff - cut) / count))


def expected_maximum(count: Number) -> Number:
    """Return the expected maximum of `count` standard normal values, the quantile at (n - 3/8) / (n + 1/4) (Blom 1958,
    Statistical Estimates and Transformed Beta-Variables)."""
    return _interpolated(count) if isinstance(count, ndarray) else _expected_maximum(count)


@lru_cache(maxsize=1024)
def _expected_maximum(count: float) -> float:
    return float(_interpolated(count))


def _interpolated(count: Number) -> Number:
    return np.interp(np.log2(count), DOUBLINGS, _HIGHEST)


_HIGHEST = [NormalDist().inv_cdf((2.0**doubling - 0.375) / (2.0**doubling + 0.25)) for doubling in DOUBLINGS]
