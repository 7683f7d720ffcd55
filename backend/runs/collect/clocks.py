"""The clock of a node against ours, by its heartbeats: either may be set while a run goes on, or drift for weeks."""

SET_S = 5.0
"""A clock that is off by more than it was, and than can be told, has been set."""
TOO_WIDE_S = 30.0
"""A heartbeat whose time is not known better says nothing; nodes are polled every second or two."""


class NodeClock:
    """How far one node's clock is ahead of ours."""

    def __init__(self, offset_s: float) -> None:
        self.offset_s = offset_s
        self._read_at: float | None = None

    def note(self, asked: float, answered: float, newest: float | None, *, whole: bool) -> float | None:
        """Take in a read of the heartbeats, begun and ended by our clock; what `offset_s` should be where it is not.

        `newest`: the node's time in the last of those that are new, which was written after the read before.
        """
        before, self._read_at = self._read_at, asked if whole else None
        if newest is None or before is None or not 0 <= answered - before <= TOO_WIDE_S:
            return None
        least, most = newest - answered, newest - before
        return None if least - SET_S <= self.offset_s <= most + SET_S else (least + most) / 2
