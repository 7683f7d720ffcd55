"""Supervises one attempt of a run: detects failed or lost nodes and stops the whole gang.

Every decision uses only the store and the nodes. So a restarted server, or a command line beside it, continues where
the other process was. Actions that two processes repeat do no harm.
"""

import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from backend.cluster.node import Node
from backend.cluster.node_group import try_all
from backend.job.problems import Problem
from backend.runs.collect.node_records import Status
from backend.runs.diagnosis.diagnose import diagnose, node_lost, supervisor_gone
from backend.runs.launch.launch import STOP_CALL_S, ask_for_save, ask_status
from backend.runs.launch.launch_lock import is_launching
from backend.runs.records import Event, NodeRecord, problem_from_json, problem_to_json
from backend.runs.states import ENDINGS, EventKind, RunState
from backend.runs.store import attempts, metrics, queue_order, run_store
from backend.runs.store.store import Store
from backend.runs.supervise import gang_rules, restart
from backend.runs.supervise.attempt_recorder import AttemptRecorder
from backend.runs.supervise.gang_rules import NodeView, Timing
from backend.runs.supervise.node_stops import NodeStops
from backend.runs.supervise.slow_node import SlowNodeWatch
from backend.runs.view.history import is_saving

_log = logging.getLogger(__name__)

STATUS_S = 20.0


class GangMonitor:
    """The decisions of one attempt. One thread calls `tick` in a loop."""

    def __init__(
        self,
        *,
        store: Store,
        home: Path,
        run: str,
        attempt: int,
        connect: Callable[[int], Node],
        connection: Callable[[int], tuple[float | None, float | None, float]],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        timing: Timing,
    ) -> None:
        self._store = store
        self._home = home
        self._run = run
        self._attempt = attempt
        self._connect = connect
        self._connection = connection
        self._clock = clock
        self._monotonic = monotonic
        self._timing = timing
        recorder = AttemptRecorder(store, run, attempt, clock)
        self._record, self._record_once = recorder.record, recorder.record_once
        self._stops = NodeStops(recorder, connect, monotonic, timing)
        self._slow_nodes = SlowNodeWatch(store, run, attempt, clock=clock, monotonic=monotonic, timing=timing)
        self._saving_since: float | None = None
        self._next_status = monotonic() + timing.silent_after_s

    def tick(self) -> bool:
        """Read the state and act once; return True when the attempt has ended. It also stops the nodes."""
        with self._store.read() as connection:
            state = run_store.state_of(connection, self._run)
            records = attempts.nodes(connection, self._run, self._attempt)
            history = run_store.events(connection, self._run)
            is_over = attempts.newest(connection, self._run) != self._attempt
        if is_over or state is None or state.is_final or state is RunState.QUEUED:
            return True
        if is_launching(self._home, self._run):
            return False
        if state is RunState.STOPPING:
            return self._end(records, history)
        if state is RunState.RUNNING:
            self._judge(records)
        else:
            self._await_start(records, history)
        return False

    def _await_start(self, records: Sequence[NodeRecord], history: Sequence[Event]) -> None:
        """Handle a run that no process launches any more and that has not started."""
        self._store.write(self._handle_dead_launch)

    def _handle_dead_launch(self, connection: sqlite3.Connection) -> None:
        """Handle a launch whose process died: a queued run waits again if nothing was started, other runs fail."""
        now = self._clock()
        waits = queue_order.is_waiting(connection, self._run)
        if not (waits and run_store.append(connection, self._run, EventKind.WAITING, time=now)):
            detail = {"problem": problem_to_json(Problem(code="launch_interrupted"))}
            run_store.append(connection, self._run, EventKind.FAILING, time=now, detail=detail)

    def _judge(self, records: Sequence[NodeRecord]) -> None:
        views = self._views(records)
        verdict = gang_rules.judge(views, lost_after_s=self._timing.lost_after_s)
        if verdict.act == "finish":
            self._finish(records)
        elif verdict.act == "fail" and not gang_rules.first_failure(views):
            self._record(EventKind.STOP_REQUESTED, by="node")  # the store could not record it at the request
        elif verdict.act == "fail":
            self._record(EventKind.FAILING, rank=verdict.rank, problem=self._diagnose(records), diagnosed=True)
        elif verdict.act == "lose" and verdict.rank is not None:
            problem = node_lost(records[verdict.rank], views[verdict.rank].down_s or 0.0)
            self._record(EventKind.LOSING, rank=verdict.rank, problem=problem)
        else:
            self._check_silent(records, views)
            self._replace_slow(records)

    def _finish(self, records: Sequence[NodeRecord]) -> None:
        was_stopped = any(record.exit and record.exit.get("stopped") for record in records)
        if not was_stopped or self._has_all_steps():
            self._record(EventKind.FINISHED)
        elif slow := self._slow_nodes.recorded():
            self._record(EventKind.FAILING, rank=slow.rank, problem=_problem_of(slow))
        else:  # someone wrote control/stop on a node
            self._record(EventKind.STOP_REQUESTED, by="node")

    def _replace_slow(self, records: Sequence[NodeRecord]) -> None:
        """Ask the ranks to save and to exit if a spare should replace a slow node. End them when they do not.

        The run stays in state running, so that a stop of the user comes first.
        """
        slow = self._slow_nodes.recorded()
        if slow is None:
            slow_node = self._slow_nodes.find()
            if slow_node is None:
                return
            self._record(EventKind.NODE_SLOW, rank=slow_node[0], problem=slow_node[1])
        if self._saving_since is None:
            self._saving_since = self._monotonic()
            self._ask_all_for_save(records)
        elif slow is not None and self._monotonic() - self._saving_since > self._timing.save_deadline_s:
            self._record(EventKind.SAVE_TIMED_OUT)
            self._record(EventKind.FAILING, rank=slow.rank, problem=_problem_of(slow))

    def _check_silent(self, records: Sequence[NodeRecord], views: Sequence[NodeView]) -> None:
        """Ask nodes that answer but send no heartbeat whether their supervisor is alive."""
        silent = [v.rank for v in views if v.up_s and not v.is_over and v.silent_s > self._timing.silent_after_s]
        if not silent or self._monotonic() < self._next_status:
            return
        self._next_status = self._monotonic() + self._timing.silent_after_s
        answers, failures = try_all({rank: records[rank] for rank in silent}, self._ask_status, STATUS_S + 10)
        for rank, failure in failures.items():
            _log.warning("status of node %d of %s: %s", rank, self._run, failure)
            if failure.code == "bad_answer":  # its folder, its disk or its Python is missing
                self._record_once(EventKind.NODE_SILENT, rank, problem=failure.problem)
        for rank, answer in answers.items():
            if not answer["supervisor"] and "exit" not in answer:
                problem = supervisor_gone(records[rank], rebooted=bool(answer.get("rebooted")))
                self._record(EventKind.FAILING, rank=rank, problem=problem)
                return

    def _end(self, records: Sequence[NodeRecord], history: Sequence[Event]) -> bool:
        began = next(e for e in reversed(history) if e.kind in ENDINGS)
        if is_saving(history):
            self._save(records, history, began)
            return self._conclude(records, began) if all(v.is_over for v in self._views(records)) else False
        self._stop_nodes(records)
        with self._store.read() as connection:
            records = attempts.nodes(connection, self._run, self._attempt)
        waiting = [record for record in records if not self._stops.is_accounted(record)]
        overdue = self._stops.is_overdue(waiting)
        lost = gang_rules.lost_nodes(self._views(records), lost_after_s=self._timing.lost_after_s)
        # After a user's stop request, wait longer: the node may be back before the deadline.
        given_up = began.kind is not EventKind.STOP_REQUESTED and all(record.rank in lost for record in waiting)
        return self._conclude(records, began) if not waiting or overdue or given_up else False

    def _stop_nodes(self, records: Sequence[NodeRecord]) -> None:
        self._stops.stop(records)

    def _save(self, records: Sequence[NodeRecord], history: Sequence[Event], began: Event) -> None:
        """Ask the ranks to save a checkpoint and exit; give up when a node fails or after the deadline."""
        since = self._saving_since = self._saving_since or self._monotonic()
        if not any(event.kind is EventKind.SAVE_ASKED and event.seq > began.seq for event in history):
            self._ask_all_for_save(records)
        failed = gang_rules.judge(self._views(records), lost_after_s=self._timing.lost_after_s).act in ("fail", "lose")
        if failed or self._monotonic() - since > self._timing.save_deadline_s:
            self._record(EventKind.SAVE_TIMED_OUT)

    def _ask_all_for_save(self, records: Sequence[NodeRecord]) -> None:
        items = {record.rank: record for record in records if record.exit is None}
        answers, failures = try_all(items, self._ask_for_save, STOP_CALL_S)
        if answers:  # the ranks agree among themselves: one node that got the request is enough
            self._record(EventKind.SAVE_ASKED, nodes=sorted(answers), silent=sorted(failures))

    def _conclude(self, records: Sequence[NodeRecord], began: Event) -> bool:
        """Record how the attempt ended. The run ends with it, unless the gang is restarted."""
        views = self._views(records)
        unsure = [record for record, view in zip(records, views, strict=True) if not view.is_over]
        if began.kind is EventKind.LOSING:
            self._record_end(EventKind.LOST, began.rank, _problem_of(began))
        elif unsure:
            is_left = any(record.stop and record.stop["left"] for record in unsure)
            is_diagnosed = began.detail.get("diagnosed") and not is_left
            problem: Problem | None = self._diagnose(records) if is_diagnosed else self._stops.problem_of(unsure[0])
            if began.kind is EventKind.STOP_REQUESTED:
                self._record(EventKind.LOST, rank=unsure[0].rank, problem=problem)
            else:
                self._record_end(EventKind.LOST, unsure[0].rank, problem)
        elif began.kind is EventKind.FAILING:
            problem = self._diagnose(records) if began.detail.get("diagnosed") else _problem_of(began)
            self._record_end(EventKind.FAILED, began.rank, problem)
        else:
            is_complete = all(view.succeeded for view in views) and self._has_all_steps()
            self._record(EventKind.FINISHED if is_complete else EventKind.STOPPED)
        return True

    def _record_end(self, kind: EventKind, rank: int | None, problem: Problem | None) -> None:
        self._store.write(
            lambda c: restart.end(c, self._run, self._attempt, kind, rank=rank, problem=problem, time=self._clock())
        )

    def _has_all_steps(self) -> bool:
        with self._store.read() as connection:
            newest = metrics.newest_points(connection, self._run, self._attempt, count=1)
        return bool(newest) and newest[0].step >= (newest[0].total_steps or float("inf"))

    def _diagnose(self, records: Sequence[NodeRecord]) -> Problem:
        unreachable = {v.rank: v.down_s for v in self._views(records) if not v.is_over and v.down_s is not None}
        with self._store.read() as connection:
            return diagnose(connection, self._run, self._attempt, records, unreachable)

    def _views(self, records: Sequence[NodeRecord]) -> list[NodeView]:
        views = []
        for record in records:
            up, down, silent = self._connection(record.rank)
            views.append(
                NodeView(
                    rank=record.rank,
                    exit=record.exit,
                    stop=record.stop,
                    up_s=up,
                    down_s=down,
                    silent_s=silent,
                    clock_offset_s=record.clock_offset_s,
                )
            )
        return views

    def _ask_for_save(self, rank: int, record: NodeRecord) -> None:
        ask_for_save(record, self._connect(rank))

    def _ask_status(self, rank: int, record: NodeRecord) -> Status:
        return ask_status(record, self._connect(rank), STATUS_S)


def _problem_of(event: Event) -> Problem | None:
    values = event.detail.get("problem")
    return problem_from_json(values) if values else None
