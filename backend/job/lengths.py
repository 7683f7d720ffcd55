"""Distribution of sample lengths for a known mean: the one of maximum entropy, which assumes nothing else."""

from math import exp


def cut_mean(mean: float, cutoff: int) -> float:
    """Return the tokens of a mean sample after it is cut.

    Lengths follow an exponential distribution, the one of maximum entropy for a given mean
    (https://en.wikipedia.org/wiki/Maximum_entropy_probability_distribution).
    """
    return mean * (1 - exp(-cutoff / mean))
