"""A monotonic clock for waits and for the age of data in memory."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_s() -> float:
    """Seconds since some moment of this boot, including time when the machine sleeps. Do not store them."""
    return time.clock_gettime(_CLOCK)
