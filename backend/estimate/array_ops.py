"""Operations that plain numbers and NumPy arrays write differently. With them one formula serves both.

`type(value) is ndarray` takes a third of the time of isinstance, which also asks a plain number for its class. The name
is imported alone, because Python 3.11 looks `np.ndarray` up anew each time. It also multiplies two floats in half the
time of an int and a float, so the constants of formulas that every layer needs are written as floats.
"""

from functools import reduce

import numpy as np
import numpy.typing as npt
from numpy import ndarray

Array = npt.NDArray[np.float64]
"""One entry for each plan. Arrays of integers are allowed, as `int` is allowed for `float`."""
Number = float | Array
"""A plain number, or an array with one entry for each plan."""
Flag = bool | npt.NDArray[np.bool_]
"""A condition, or an array of conditions with one entry for each plan."""
ZERO: Number = 0.0
"""The start of a sum of numbers."""


def plain(value: Number) -> float:
    """Return a number that is no array."""
    if isinstance(value, ndarray):
        raise TypeError("one plan was expected, not an array of plans")
    return value


def larger(first: Number, second: Number) -> Number:
    """Return the larger of two values, entry by entry where one of them is an array."""
    if type(first) is ndarray or type(second) is ndarray:
        return np.maximum(first, second)
    return first if first > second else second


def smaller(first: Number, second: Number) -> Number:
    """Return the smaller of two values, entry by entry where one of them is an array."""
    if type(first) is ndarray or type(second) is ndarray:
        return np.minimum(first, second)
    return first if first < second else second


def largest(*values: Number) -> Number:
    """Return the largest value, entry by entry where one of them is an array."""
    try:
        return max(values)
    except ValueError:
        return reduce(np.maximum, values)


def choose(condition: Flag, true: Number, false: Number) -> Number:
    """Return `true` where the condition holds, else `false`."""
    # Most conditions of a single plan are these two; a test of the type takes longer.
    if condition is True:
        return true
    if condition is False:
        return false
    if type(condition) is ndarray:
        return np.where(condition, true, false)
    return true if condition else false


def clip(value: Number, low: Number, high: Number) -> Number:
    """Return the value within [low, high], entry by entry where it or the upper end is an array."""
    if type(value) is ndarray or type(high) is ndarray:
        return np.minimum(np.maximum(value, low), high)
    return low if value < low else high if value > high else value
