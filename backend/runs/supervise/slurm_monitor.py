"""Supervises one attempt that Slurm runs: it waits in Slurm's queue, and Slurm may end it before the training does.

The run stays in `starting` until Slurm gives it nodes. Slurm says why an allocation ended (preempted, time limit, node
failure, no memory); the supervisors' records say how the ranks ended. Slurm's word counts first.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any

from backend.cluster import slurm
from backend.cluster.node import Node, NodeError
from backend.cluster.slurm import FORGOTTEN, SlurmJob
from backend.engines.slurm import BEGAN, LOG, SIGNAL
from backend.job.problems import Problem
from backend.runs.launch.slurm_launch import attempt_folder, job_name
from backend.runs.launch.slurm_stop import stop_job
from backend.runs.records import Event, NodeRecord
from backend.runs.states import EventKind, RunState
from backend.runs.store import attempts, run_store
from backend.runs.supervise import gang_rules
from backend.runs.supervise.gang_monitor import GangMonitor
from backend.runs.supervise.gang_rules import NodeView

_log = logging.getLogger(__name__)

REPORT_S = 60.0
"""Time between two records of a place in the queue or of an expected start. A new state is recorded at once."""
END_WAIT_S = 120.0
"""How long a job may take to end after its first node has ended. Slurm's epilog runs then."""
SILENT_S = 90.0
"""A node whose heartbeats are this old, while other nodes send theirs, has failed, before Slurm's own time-out."""
TAIL_BYTES = 4 << 10

CODES = {
    "PREEMPTED": "slurm_preempted",
    "TIMEOUT": "slurm_time_limit",
    "DEADLINE": "slurm_time_limit",
    "NODE_FAIL": "slurm_node_failed",
    "BOOT_FAIL": "slurm_node_failed",
    "OUT_OF_MEMORY": "slurm_out_of_memory",
}
"""Slurm's state of an ended job -> the problem that ended the attempt."""


class SlurmMonitor(GangMonitor):
    """The decisions of one attempt in Slurm. The login node stands for every node."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._job: SlurmJob | None = None
        self._next_question = -math.inf
        self._reported: tuple[object, ...] = ()
        self._reported_at = -math.inf
        self._ending_since: float | None = None
        self._silence: str = ""

    def _await_start(self, records: Sequence[NodeRecord], history: Sequence[Event]) -> None:
        with self._store.read() as connection:
            state = run_store.state_of(connection, self._run)
        if state is not RunState.STARTING or not records:
            super()._await_start(records, history)
            return
        job = self._ask_slurm(records)
        is_submitted = any(e.kind is EventKind.SUBMITTED and e.attempt == self._attempt for e in history)
        if job is None:
            return
        if job.state == FORGOTTEN and not is_submitted:  # the server died before it submitted the job
            super()._await_start(records, history)
        elif job.state in ("RUNNING", "COMPLETING") or (job.is_over and self._has_begun(records)):
            for record in records:
                self._record_once(EventKind.NODE_STARTED, record.rank)
            self._record(EventKind.STARTED)
        elif job.is_over and job.state == "CANCELLED":
            self._record(EventKind.STOP_REQUESTED, by="scheduler")
        elif job.is_over:
            self._record(EventKind.FAILING, problem=self._problem_of_job(job, records))

    def _judge(self, records: Sequence[NodeRecord]) -> None:
        views = self._views(records)
        has_ended = [view for view in views if view.exit is not None]
        job = self._ask_slurm(records, at_once=bool(has_ended) and self._ending_since is None)
        if has_ended or (job is not None and (job.is_over or job.state == "COMPLETING")):
            self._judge_end(records, views, job)
        elif silent := _silent_node(views):
            values = {"node": records[silent.rank].address, "seconds": round(silent.silent_s), "said": ""}
            problem = Problem(code="slurm_node_silent", node=records[silent.rank].address, values=values)
            self._record(EventKind.LOSING, rank=silent.rank, problem=problem)

    def _judge_end(self, records: Sequence[NodeRecord], views: Sequence[NodeView], job: SlurmJob | None) -> None:
        """Decide why an attempt ends. Wait for Slurm's word while it may still come."""
        self._ending_since = self._ending_since or self._monotonic()
        waited_s = self._monotonic() - self._ending_since
        by_scheduler = any(view.exit and view.exit.get("reason") == "scheduler" for view in views)
        failed = gang_rules.first_failure(views)
        is_over = job is not None and job.is_over
        if not is_over and waited_s < END_WAIT_S:
            if failed and not by_scheduler and job is not None and job.state == "RUNNING":
                # The other ranks may wait for the failed node for ever.
                problem = self._diagnose(records)
                self._record(EventKind.FAILING, rank=failed[0].rank, problem=problem, diagnosed=True)
            self._next_question = min(self._next_question, self._monotonic() + 1.0)
            return
        all_read = all(view.exit is not None for view in views)
        if not all_read and waited_s < self._timing.drain_s:
            return  # the collectors read the last records
        state = job.state if job is not None else FORGOTTEN
        if state in CODES and job is not None:
            problem = self._problem_of_job(job, records)
            rank = next((record.rank for record in records if record.address == problem.node), None)
            self._record(EventKind.FAILING, rank=rank, problem=problem)
        elif state == "CANCELLED":
            self._record(EventKind.STOP_REQUESTED, by="scheduler")
        elif by_scheduler:  # without a signal to the batch script, a preemption ends the ranks, and so the script
            problem = Problem(code="slurm_preempted", field="cluster.scheduler", values=self._job_values())
            self._record(EventKind.FAILING, problem=problem)
        elif failed:
            self._record(EventKind.FAILING, rank=failed[0].rank, problem=self._diagnose(records), diagnosed=True)
        elif all_read and all(view.succeeded for view in views):
            self._finish(records)
        elif job is not None:
            self._record(EventKind.FAILING, problem=self._problem_of_job(job, records))

    def _finish(self, records: Sequence[NodeRecord]) -> None:
        """Record the end of ranks that exited by themselves: at their last step, or after Slurm's signal."""
        announced = self._announcement(records)
        if announced is None or self._has_all_steps():
            super()._finish(records)
            return
        field = "cluster.scheduler.time_limit" if announced == "slurm_time_limit" else "cluster.scheduler"
        problem = Problem(code=announced, field=field, values=self._job_values())
        self._record(EventKind.FAILING, problem=problem)

    def _stop_nodes(self, records: Sequence[NodeRecord]) -> None:
        """End the job once for all nodes, and record Slurm's proof for each of them."""
        pending = self._stops.pending(records)
        if not pending:
            return
        node = self._connect(0) if self._is_connected() else None
        try:
            if node is None:
                return
            self._record_once(EventKind.NODE_STOPPING, 0)
            answer = stop_job(self._run, self._attempt, records, node, self._timing.grace_s)
        except NodeError as error:
            for rank in pending:
                self._stops.note_failure(rank, error)
            self._record_once(EventKind.NODE_STOP_FAILED, 0, problem=error.problem)
        else:
            for rank in pending:
                self._stops.note_answer(rank, answer)
            self._ask_slurm(records, at_once=True)
        finally:
            self._stops.end_try()

    def _save(self, records: Sequence[NodeRecord], history: Sequence[Event], began: Event) -> None:
        """Ask the ranks to save. A job that waits has no ranks: it is cancelled."""
        job = self._ask_slurm(records, at_once=self._saving_since is None)
        if job is not None and (job.is_waiting or (job.is_over and not self._has_begun(records))):
            self._record(EventKind.STOP_FORCED)
        else:
            super()._save(records, history, began)

    def _is_connected(self) -> bool:
        try:
            self._connect(0)
        except NodeError as error:
            self._record_once(EventKind.NODE_STOP_FAILED, 0, problem=error.problem)
            return False
        return True

    def _ask_slurm(self, records: Sequence[NodeRecord], *, at_once: bool = False) -> SlurmJob | None:
        """Return Slurm's newest word on the job; None if it has not answered yet."""
        now = self._monotonic()
        if now < self._next_question and not at_once:
            return self._job
        self._next_question = now + self._timing.scheduler_s
        name = job_name(self._run, self._attempt)
        try:
            node = self._connect(0)
            job = slurm.find_job(node, name) or slurm.past_job(node, name) or self._forgotten()
            self._report(job, node, records)
            self._job, self._silence = job, ""
        except NodeError as error:
            if error.code != self._silence:
                _log.warning("Slurm on %s: %s", self._run, error)
                self._record_once(EventKind.NODE_SILENT, 0, problem=error.problem)
            self._silence = error.code
        return self._job

    def _forgotten(self) -> SlurmJob:
        return SlurmJob(id=self._job.id if self._job else "", state=FORGOTTEN)

    def _report(self, job: SlurmJob, node: Node, records: Sequence[NodeRecord]) -> None:
        """Record what changed. The names of the nodes go to their records when the nodes are known."""
        now = self._monotonic()
        news, details = (job.id, job.state, job.reason, job.nodes), (job.position, job.start)
        is_new = news != self._reported[:4]
        if not is_new and (details == self._reported[4:] or now - self._reported_at < REPORT_S):
            return
        if job.nodes and is_new:
            names = slurm.node_names(node, job.nodes)
            if len(names) == len(records):
                self._store.write(lambda c: attempts.set_addresses(c, self._run, self._attempt, names))
        self._reported, self._reported_at = (*news, *details), now
        detail: dict[str, Any] = {
            "job": job.id,
            "state": job.state,
            "reason": job.reason,
            "nodes": job.nodes,
            "start": job.start,
            "position": job.position,
            "partition": job.partition,
        }
        with self._store.read() as connection:
            history = run_store.events(connection, self._run)
        of_attempt = [e for e in history if e.kind is EventKind.SCHEDULER and e.attempt == self._attempt]
        if not of_attempt or dict(of_attempt[-1].detail) != detail:
            self._record(EventKind.SCHEDULER, **detail)

    def _has_begun(self, records: Sequence[NodeRecord]) -> bool:
        return self._connect(0).exists(f"{attempt_folder(records[0].folder)}/{BEGAN}")

    def _announcement(self, records: Sequence[NodeRecord]) -> str | None:
        """Return the problem that Slurm announced to the batch script; None without an announcement."""
        try:
            text = self._connect(0).read(f"{attempt_folder(records[0].folder)}/{SIGNAL}").decode(errors="replace")
        except NodeError as error:
            if error.code != "missing_file":
                raise
            return None
        with self._store.read() as connection:
            scheduler = run_store.job_of(connection, self._run).cluster.scheduler
        margin_s = 120 + (scheduler.signal_s if scheduler else 0)
        left_s = seconds_left(text.strip())
        return "slurm_time_limit" if left_s is not None and left_s <= margin_s else "slurm_preempted"

    def _problem_of_job(self, job: SlurmJob, records: Sequence[NodeRecord]) -> Problem:
        """Return the problem that Slurm's state of an ended job names, with the node where Slurm knows it."""
        code = CODES.get(job.state, "slurm_ended")
        values: dict[str, object] = self._job_values()
        name: str | None = None
        if code == "slurm_node_failed":
            down = slurm.down_nodes(self._connect(0), job.nodes) if job.nodes else {}
            name = next(iter(down), None)
            values |= {"node": name or job.nodes, "said": down.get(name, job.reason) if name else job.reason}
        elif code == "slurm_ended":
            if not self._has_begun(records):
                root = attempt_folder(records[0].folder)
                return Problem(code="slurm_run_root_unseen", field="cluster.run_root", values={**values, "path": root})
            values |= {"said": self._log_tail(records)}
        return Problem(code=code, field="cluster.scheduler", node=name, values=values)

    def _job_values(self) -> dict[str, object]:
        job = self._job or self._forgotten()
        return {"job": job.id, "state": job.state, "reason": job.reason, "nodes": job.nodes}

    def _log_tail(self, records: Sequence[NodeRecord]) -> str:
        try:
            data = self._connect(0).read(f"{attempt_folder(records[0].folder)}/{LOG}", 0, 1 << 20)
        except NodeError as error:
            return error.code
        lines = data[-TAIL_BYTES:].decode(errors="replace").split("\n")
        return " ".join(line.strip() for line in lines if line.strip())[-400:]


def seconds_left(text: str) -> float | None:
    """Return the seconds of squeue's %L ([days-][[hours:]minutes:]seconds); None if it is no time."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts) or (dash and not days.isdigit()):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return float(seconds + int(days or 0) * 86400)


def _silent_node(views: Sequence[NodeView]) -> NodeView | None:
    """Return a node without heartbeats while another node of the same login connection has them."""
    running = [view for view in views if view.up_s is not None and view.up_s > SILENT_S and view.exit is None]
    silent = [view for view in running if view.silent_s > SILENT_S]
    heard = [view for view in running if view.silent_s < SILENT_S / 3]
    return silent[0] if silent and heard else None
