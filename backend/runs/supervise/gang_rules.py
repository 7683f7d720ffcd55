"""The gang rules: all nodes of an attempt run together or stop together. Pure functions of the state of each node.

- A node that exits with an error fails the run. The earliest failed node is the cause.
- The run is finished when every node has exited with code 0.
- A node is lost when it is unreachable and its heartbeat is stale, while another node of the gang was reachable
  all that time. A server without a network cannot decide, and does nothing.
- A node that the server cannot read because of its own fault (poller.py) is not lost, and it proves no other node lost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from backend.runs.collect.node_records import Exit, Stopped

LOST_AFTER_S = 30.0
"""A node that is unreachable and without a heartbeat for this time is lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Intervals and deadlines of the supervision, in seconds."""

    poll_s: float = 1.0
    lost_after_s: float = LOST_AFTER_S
    silent_after_s: float = 8.0
    """Four missed heartbeats. Then the server asks the node whether its supervisor is alive."""
    grace_s: float = 10.0
    """Time between TERM and KILL."""
    retry_s: float = 3.0
    """Time between two tries to stop a node that did not answer."""
    stop_deadline_s: float = 120.0
    """After this time, a node that could not be stopped counts as lost."""
    mend_deadline_s: float = 3600.0
    """The same deadline when a fault of this server prevents the stop: the user needs time to repair it."""
    save_deadline_s: float = 900.0
    """Time for the checkpoint of a stop. After it, the gang is stopped without a checkpoint."""
    slow_look_s: float = 10.0
    """Time between two looks for a slow node, in a run with spares."""
    slow_after_s: float = 180.0
    """A node that is slow at every look for this time is replaced by a spare."""
    scheduler_s: float = 5.0
    """Time between two questions to a scheduler about the job of an attempt."""
    drain_s: float = 5.0
    """How long to wait for the exit record of a node without processes. A killed supervisor writes none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeView:
    """The current state of one node. The clock of the seconds stops while this machine sleeps."""

    rank: int
    exit: Exit | None = None
    stop: Stopped | None = None
    up_s: float | None = None
    """How long every poll has succeeded; None when the last poll failed."""
    down_s: float | None = None
    """How long every poll has failed because of the network or the node; None when the last poll did not."""
    silent_s: float = 0.0
    """Time since the newest heartbeat arrived."""
    clock_offset_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Return whether no process of the run is left on the node: it exited by itself, or `stop` proved it."""
        return nothing_left(self.stop, self.exit)

    @property
    def succeeded(self) -> bool:
        """Return whether the node exited with code 0, also after a stop with a checkpoint."""
        return self.exit is not None and self.exit.get("code") == 0

    @property
    def ended_at(self) -> float:
        """Return when the node exited, by our clock; infinity before the exit."""
        return float("inf") if self.exit is None else self.exit.get("time", 0.0) - self.clock_offset_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What to do with the gang, and the node that is the reason."""

    act: Literal["keep", "finish", "fail", "lose"]
    rank: int | None = None


def nothing_left(stop: Stopped | None, exit: Exit | None) -> bool:
    """Return whether the node's answer to `stop`, or else its exit record, proves that no process is left."""
    if stop is not None:
        return not stop["left"]
    return exit is not None and not exit.get("left") and not exit.get("unreadable")


def judge(nodes: Sequence[NodeView], *, lost_after_s: float = LOST_AFTER_S) -> Verdict:
    """Return what to do with a running gang."""
    failed = [node for node in nodes if node.exit is not None and not node.succeeded]
    if failed:
        return Verdict(act="fail", rank=min(failed, key=lambda node: node.ended_at).rank)
    if all(node.succeeded for node in nodes):
        return Verdict(act="finish")
    for rank in lost_nodes(nodes, lost_after_s=lost_after_s):
        return Verdict(act="lose", rank=rank)
    return Verdict(act="keep")


def lost_nodes(nodes: Sequence[NodeView], *, lost_after_s: float = LOST_AFTER_S) -> list[int]:
    """Return the ranks of the lost nodes, in order."""
    return [node.rank for node in nodes if not node.is_over and _is_lost(node, nodes, lost_after_s)]


def first_failure(nodes: Iterable[NodeView]) -> list[NodeView]:
    """Return the nodes that failed by themselves, earliest first, without stopped nodes."""
    failed = [node for node in nodes if node.exit is not None and not node.succeeded and not node.exit.get("stopped")]
    return sorted(failed, key=lambda node: node.ended_at)


def _is_lost(node: NodeView, nodes: Sequence[NodeView], lost_after_s: float) -> bool:
    if node.down_s is None or min(node.down_s, node.silent_s) < lost_after_s:
        return False
    return any(other.up_s is not None and other.up_s >= lost_after_s for other in nodes)
