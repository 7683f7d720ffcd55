"""A monotonic clock for waits and for the age of data in memory."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_s() -> float:
    """Return seconds since the boot, including sleep of the machine. Do not store them: the next boot restarts them."""
    return time.clock_gettime(_CLOCK)
