"""The fullest micro-batch of a run, which its memory is for, where samples are shorter than cutoff_len."""

from math import exp
from statistics import NormalDist

import numpy as np

from backend.estimate.array_ops import Number, larger, smaller
from backend.job.job import Job
from backend.job.lengths import cut_mean

DOUBLINGS = np.arange(25)
"""Of the number of draws among which the highest is looked for; between them it goes with the logarithm."""


def worst_microbatch_length(job: Job) -> Number:
    """Tokens of a mean sequence in the fullest micro-batch of a job; its sizes may be arrays.

    cutoff_len, but where sequences follow each other and it is known how long samples are and how many.
    """
    training = job.training
    if job.traits.pads != "nothing" or training.packing or not training.samples or training.sample_tokens is None:
        return training.cutoff_len
    draws = training.samples * training.num_train_epochs
    return worst_length(training.sample_tokens, training.cutoff_len, training.micro_batch_size, draws)


def worst_length(mean: float, cutoff: int, count: Number, draws: float) -> Number:
    """The same of micro-batches of `count` samples each, `drawn` in all: that several of the longest meet is rare.

    Sums of exponential lengths are nearly gamma, with the quantile of Wilson and Hilferty 1931, The Distribution of
    Chi-Square. But one sample of cutoff_len, among others of mean length, is always taken to be there: of 149 data sets
    every fourth has longer ones than an exponential's longest, though every tenth alone spreads more (ms-swift
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
    """Mean of the highest of so many standard normal values (Blom 1958, Statistical Estimates and Transformed
    Beta-Variables: the quantile at (n - 3/8) / (n + 1/4))."""
    return np.interp(np.log2(count), DOUBLINGS, _HIGHEST)


_HIGHEST = [NormalDist().inv_cdf((2.0**doubling - 0.375) / (2.0**doubling + 0.25)) for doubling in DOUBLINGS]
