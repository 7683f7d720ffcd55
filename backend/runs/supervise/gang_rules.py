"""The gang rule: nodes of one attempt live and die together. Pure decisions over what is known of each node.

- a node that ends with a failure fails the run; the earliest one is the culprit
- the run is finished when every node has ended with code 0
- a node is lost when it cannot be reached and its heartbeat is stale, while another node of the gang was reachable all
  that time: a server whose own network is gone cannot tell, and leaves the run alone
- a node that the server cannot read because of its own fault (poller.py) is not lost, and proves no other node lost
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from backend.runs.collect.node_records import Exit, Stopped

LOST_AFTER_S = 30.0
"""A node unreachable and without heartbeat for so long is lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Patience of the gang, in seconds."""

    poll_s: float = 1.0
    lost_after_s: float = LOST_AFTER_S
    silent_after_s: float = 8.0
    """Four heartbeats missed on a node that answers: its supervisor is asked for."""
    grace_s: float = 10.0
    """Between TERM and KILL."""
    retry_s: float = 3.0
    """Between two tries to stop a node that did not answer."""
    stop_deadline_s: float = 120.0
    """A node that could not be stopped by then is given up as lost."""
    mend_deadline_s: float = 3600.0
    """The same for a node that this server cannot reach for a reason of its own: time for its user to mend that."""
    save_deadline_s: float = 900.0
    """For a checkpoint on the user's wish; the gang is stopped without one afterwards."""
    drain_s: float = 5.0
    """Wait for the exit record of a node whose processes are gone; a killed supervisor writes none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeView:
    """What is known of one node now. Seconds are of a clock that stands still while this machine sleeps."""

    rank: int
    exit: Exit | None = None
    stop: Stopped | None = None
    up_s: float | None = None
    """How long every poll has succeeded; None when the last one failed, for whatever reason."""
    down_s: float | None = None
    """How long every poll has failed by what the network or the node said; None when the last one did not."""
    silent_s: float = 0.0
    """Since a heartbeat arrived."""
    clock_offset_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """No process of the run is left on the node: it ended by itself, or `stop` proved it."""
        return nothing_left(self.stop, self.exit)

    @property
    def succeeded(self) -> bool:
        """The node ended with code 0; a stop with a checkpoint ends so too."""
        return self.exit is not None and self.exit.get("code") == 0

    @property
    def ended_at(self) -> float:
        """When it ended, by our clock; the far future while it has not."""
        return float("inf") if self.exit is None else self.exit.get("time", 0.0) - self.clock_offset_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What to do with the gang, and the node that decided it."""

    act: Literal["keep", "finish", "fail", "lose"]
    rank: int | None = None


def nothing_left(stop: Stopped | None, exit: Exit | None) -> bool:
    """The node's newest word, its answer to `stop` or else its exit, is that no process of the attempt is left."""
    if stop is not None:
        return not stop["left"]
    return exit is not None and not exit.get("left") and not exit.get("unreadable")


def judge(nodes: Sequence[NodeView], *, lost_after_s: float = LOST_AFTER_S) -> Verdict:
    """What the state of its nodes means for a running gang."""
    failed = [node for node in nodes if node.exit is not None and not node.succeeded]
    if failed:
        return Verdict(act="fail", rank=min(failed, key=lambda node: node.ended_at).rank)
    if all(node.succeeded for node in nodes):
        return Verdict(act="finish")
    for rank in lost_nodes(nodes, lost_after_s=lost_after_s):
        return Verdict(act="lose", rank=rank)
    return Verdict(act="keep")


def lost_nodes(nodes: Sequence[NodeView], *, lost_after_s: float = LOST_AFTER_S) -> list[int]:
    """Ranks of the nodes that are lost, in their order."""
    return [node.rank for node in nodes if not node.is_over and _is_lost(node, nodes, lost_after_s)]


def first_failure(nodes: Iterable[NodeView]) -> list[NodeView]:
    """The nodes that failed by themselves, earliest first; those that were stopped do not count."""
    failed = [node for node in nodes if node.exit is not None and not node.succeeded and not node.exit.get("stopped")]
    return sorted(failed, key=lambda node: node.ended_at)


def _is_lost(node: NodeView, nodes: Sequence[NodeView], lost_after_s: float) -> bool:
    if node.down_s is None or min(node.down_s, node.silent_s) < lost_after_s:
        return False
    return any(other.up_s is not None and other.up_s >= lost_after_s for other in nodes)
