"""Stops the nodes of one attempt, until each has proved that no process is left or the deadline has passed."""

import logging
from collections.abc import Callable, Sequence

from backend.cluster.node import Node, NodeError
from backend.cluster.node_group import try_all
from backend.job.problems import Problem
from backend.runs.collect.node_records import Stopped
from backend.runs.launch.launch import STOP_CALL_S, stop_supervisor
from backend.runs.records import NodeRecord
from backend.runs.states import EventKind
from backend.runs.store.store import StoreError
from backend.runs.supervise.attempt_recorder import AttemptRecorder
from backend.runs.supervise.gang_rules import Timing

_log = logging.getLogger(__name__)


class NodeStops:
    """The stop of an attempt. One thread calls `stop` in a loop, and asks about the nodes in between."""

    def __init__(
        self,
        recorder: AttemptRecorder,
        connect: Callable[[int], Node],
        monotonic: Callable[[], float],
        timing: Timing,
    ) -> None:
        self._recorder = recorder
        self._connect = connect
        self._monotonic = monotonic
        self._timing = timing
        self._since: float | None = None
        """When the stop began."""
        self._next_try = 0.0
        self._proved: dict[int, float] = {}
        """Rank of a node -> when it proved that no process is left."""
        self._local_fault_at: float | None = None
        """When a fault of this server last prevented the stop of a node."""
        self._failures: dict[int, NodeError] = {}
        """Rank of a node -> why its last stop failed."""

    def stop(self, records: Sequence[NodeRecord]) -> None:
        """Call `supervisor.py stop` in parallel on every node that has not yet proved that no process is left."""
        pending = self.pending(records)
        if not pending:
            return
        answers, failures = try_all(pending, self._stop_node, STOP_CALL_S)
        for rank, answer in answers.items():
            self.note_answer(rank, answer)
        for rank, failure in failures.items():
            self.note_failure(rank, failure)
            self._recorder.record_once(EventKind.NODE_STOP_FAILED, rank, problem=failure.problem)
        self.end_try()

    def pending(self, records: Sequence[NodeRecord]) -> dict[int, NodeRecord]:
        """Return the nodes to stop now, by rank. Empty until the next try is due."""
        if self._since is None:
            self._since = self._monotonic()
        if self._monotonic() < self._next_try:
            return {}
        return {record.rank: record for record in records if record.stop is None or record.stop["left"]}

    def end_try(self) -> None:
        """Let the next try wait."""
        self._next_try = self._monotonic() + self._timing.retry_s

    def note_answer(self, rank: int, answer: Stopped) -> None:
        """Record what a node answered to the stop."""
        self._failures.pop(rank, None)
        if not answer["left"]:
            self._proved[rank] = self._monotonic()
        self._recorder.record_stop(rank, answer)

    def note_failure(self, rank: int, failure: NodeError) -> None:
        """Note why a node could not be stopped."""
        self._failures[rank] = failure

    def is_accounted(self, record: NodeRecord) -> bool:
        """Return whether no process is left on the node, and its exit record is in the store or will never come."""
        if record.stop is None or record.stop["left"]:
            return False
        proved = self._proved.setdefault(record.rank, self._monotonic())
        never_started = record.stop.get("started") is False
        return record.exit is not None or never_started or self._monotonic() - proved >= self._timing.drain_s

    def is_overdue(self, waiting: Sequence[NodeRecord]) -> bool:
        """Return whether the stop took too long. After a fault of this server, the deadline starts again."""
        now, failures = self._monotonic(), [self._failures.get(record.rank) for record in waiting]
        since = now if self._since is None else self._since
        if any(failure is not None and failure.is_local for failure in failures):
            self._local_fault_at = now
            return now - since > self._timing.mend_deadline_s
        return now - (self._local_fault_at or since) > self._timing.stop_deadline_s

    def problem_of(self, record: NodeRecord) -> Problem:
        """Return why a stop is not proved: processes survived SIGKILL, the stop failed, or the node did not answer."""
        processes = record.stop["left"] if record.stop else []
        failure = self._failures.get(record.rank)
        if not processes and failure is not None and (failure.is_local or failure.code == "stop_failed"):
            return failure.problem
        values = {"node": record.address, "processes": len(processes)}
        return Problem(code="processes_left" if processes else "node_not_stopped", node=record.address, values=values)

    def _stop_node(self, rank: int, record: NodeRecord) -> Stopped:
        node = self._connect(rank)
        try:
            self._recorder.record_once(EventKind.NODE_STOPPING, rank)
        except StoreError as error:  # stop the node even without a record
            _log.error("stopping node %d of %s: %s", rank, self._recorder.run, error)
        last_failure = self._failures.get(rank)
        # After a timeout, the node's Python may be on a file server that is down.
        hangs = last_failure is not None and last_failure.code == "timeout"
        return stop_supervisor(record, node, self._timing.grace_s, by_shell=hangs)
