"""Detects changes of a node's clock from its heartbeats. A clock can be set during a run, or drift for weeks."""

SET_S = 5.0
"""Tolerance beyond the uncertainty of the measurement. A larger difference means that the clock was set."""
TOO_WIDE_S = 30.0
"""A heartbeat whose time is less certain is ignored. Nodes are polled every second or two."""


class NodeClock:
    """How far one node's clock is ahead of ours."""

    def __init__(self, offset_s: float) -> None:
        self.offset_s = offset_s
        self._read_at: float | None = None

    def note(self, requested: float, answered: float, newest: float | None, *, whole: bool) -> float | None:
        """Note one read of the heartbeats; return the new `offset_s`, or None when the present one still fits.

        `requested` and `answered`: begin and end of the read, by our clock. `newest`: the node's time in the newest of
        the new heartbeats, which was written after the previous read.
        """
        before, self._read_at = self._read_at, requested if whole else None
        if newest is None or before is None or not 0 <= answered - before <= TOO_WIDE_S:
            return None
        lowest, highest = newest - answered, newest - before
        return None if lowest - SET_S <= self.offset_s <= highest + SET_S else (lowest + highest) / 2
