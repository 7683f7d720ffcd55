"""The few operations that plain numbers and NumPy arrays write differently, so that one set of formulas serves both."""

from functools import reduce
from typing import Any

import numpy as np

Number = Any
"""A plain int or float, or a NumPy array with one entry a plan."""


def larger(one: Number, other: Number) -> Number:
    """The larger of two values, entry by entry where one of them is an array."""
    if type(one) is np.ndarray or type(other) is np.ndarray:
        return np.maximum(one, other)
    return one if one > other else other


def least(one: Number, other: Number) -> Number:
    """The smaller of two values, entry by entry where one of them is an array."""
    if type(one) is np.ndarray or type(other) is np.ndarray:
        return np.minimum(one, other)
    return one if one < other else other


def largest(*values: Number) -> Number:
    """The largest of any number of values, likewise."""
    try:
        return max(values)
    except ValueError:
        return reduce(np.maximum, values)


def choose(condition: Number, true: Number, false: Number) -> Number:
    """`true` where the condition holds, else `false`."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, true, false)
    return true if condition else false


def clip(value: Number, low: Number, high: Number) -> Number:
    """The value within [low, high], entry by entry where it or the upper end is an array."""
    if isinstance(value, np.ndarray) or isinstance(high, np.ndarray):
        return np.minimum(np.maximum(value, low), high)
    return low if value < low else high if value > high else value
