"""How long samples are of which the mean is known: of all lengths with this mean, those that assume nothing more."""

from math import exp


def cut_mean(mean: float, cutoff: int) -> float:
    """Tokens of a mean sample once it is cut; lengths spread as an exponential, the distribution of the largest entropy
    with a given mean (https://en.wikipedia.org/wiki/Maximum_entropy_probability_distribution).
    """
    return mean * (1 - exp(-cutoff / mean))
