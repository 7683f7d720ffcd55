"""Writes what a collector has read of a node, in one transaction: records, logs, the exit, and their events."""

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from backend.runs.collect import bad_records
from backend.runs.collect.external_logs import Before, megatron_rows, trainer_log_rows
from backend.runs.collect.node_files import Batch
from backend.runs.collect.node_records import Bad, Exit, Heartbeat
from backend.runs.collect.step_tokens import RATE, count_tokens
from backend.runs.diagnosis import alerts, gpu_errors, metric_alerts
from backend.runs.redact import masked
from backend.runs.states import EventKind
from backend.runs.store import attempts, logged_metrics, metrics, run_store
from backend.runs.store.metrics import FileKey

_ONLY_METRICS = {"step", "time", "metrics"}


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEnd:
    """The end of a node."""

    exit: Exit
    bad: Bad
    """What was wrong with the exit record."""
    withheld: Collection[str]
    """Logs whose last part was not masked, and is not stored."""
    flight_records: Sequence[str]
    """Copies of NCCL's flight records."""


class BatchWriter:
    """Writes batches of one node of one attempt."""

    def __init__(self, run: str, attempt: int, node_rank: int, clock: Callable[[], float]) -> None:
        self._run = run
        self._attempt = attempt
        self._node_rank = node_rank
        self._clock = clock
        self._bad = bad_records.Counts()
        self._before: Before = {}
        self._last: dict[str, int] = {}
        """The newest step in the file of an external run."""
        self._first: dict[int, int] = {}
        """The first stored step of each global rank."""

    def write(self, connection: sqlite3.Connection, batches: Sequence[Batch], end: NodeEnd | None) -> None:
        """Write batches, their offsets, and the end of the node. OffsetConflict if another collector was faster."""
        for batch in batches:
            key = self._key(batch.source.file)
            metrics.advance(connection, key, batch.before, batch.after)
            self._record_bad(connection, key, batch.lines.bad)
            self._add(connection, key, batch)
        if end is not None and attempts.set_exit(connection, self._run, self._attempt, self._node_rank, end.exit):
            self._record_end(connection, end)

    def settle(self) -> None:
        """Note that the transaction was committed."""
        self._bad.settle()

    def _key(self, file: str) -> FileKey:
        return FileKey(run=self._run, attempt=self._attempt, rank=self._node_rank, file=file)

    def _add(self, connection: sqlite3.Connection, key: FileKey, batch: Batch) -> None:
        rows = batch.lines.rows
        match batch.source.kind:
            case "points":
                self._add_points(connection, batch)
            case "heartbeats":
                metrics.add_heartbeats(connection, self._run, self._attempt, self._node_rank, rows, self._clock())
                self._record_stuck(connection, rows)
            case "trainer_log":
                self._store_external(connection, batch, trainer_log_rows(rows, self._clock(), self._before))
            case "tensorboard":
                # A value that another file has stored stays, and no step is taken back: the logs say what was replaced.
                self._store_metrics(connection, 0, rows)
                self._record_metric_alerts(connection, rows)
            case "log" | "megatron_log":
                metrics.add_log(connection, key, batch.start, masked(batch.data))
                if batch.source.kind == "megatron_log":
                    self._store_external(connection, batch, megatron_rows(batch.data, self._clock()))

    def _record_end(self, connection: sqlite3.Connection, end: NodeEnd) -> None:
        self._record(connection, EventKind.NODE_EXITED, end.exit)
        self._record_bad(connection, self._key("exit"), end.bad)
        if end.withheld:
            self._record(connection, EventKind.LOG_WITHHELD, {"files": sorted(end.withheld)})
        if end.flight_records:
            self._record(connection, EventKind.FLIGHT_RECORDS, {"files": end.flight_records})
        self._record_gpu_errors(connection, end.exit)

    def _record_bad(self, connection: sqlite3.Connection, key: FileKey, bad: Bad) -> None:
        if bad.number and (detail := self._bad.add(connection, key, bad)):
            self._record(connection, EventKind.BAD_RECORDS, detail)

    def _record_gpu_errors(self, connection: sqlite3.Connection, ended: Exit) -> None:
        if xids := gpu_errors.xids_of(ended):
            self._record(connection, EventKind.GPU_ERROR, {"xids": xids})
        if (reason := gpu_errors.unread(ended)) and not ended.get("stopped"):
            self._record(connection, EventKind.KERNEL_LOG_UNREAD, {"reason": reason})

    def _record_stuck(self, connection: sqlite3.Connection, beats: Sequence[Heartbeat]) -> None:
        stuck = next((beat["stuck"] for beat in beats if beat.get("stuck")), None)
        kind = EventKind.NODE_STUCK
        if stuck and not run_store.has_event(connection, self._run, self._attempt, kind, self._node_rank):
            self._record(connection, kind, {"stuck": stuck})

    def _add_points(self, connection: sqlite3.Connection, batch: Batch) -> None:
        records = cast(Sequence[dict[str, Any]], batch.lines.rows)
        self._store_metrics(connection, batch.source.rank, records)
        rows = [row for row in records if _is_step(row)]
        if any(RATE in row for row in rows):
            count_tokens(rows, run_store.job_of(connection, self._run))
        self._store_points(connection, batch.source.rank, rows)
        if batch.source.rank == 0:
            self._record_metric_alerts(connection, records)

    def _store_external(self, connection: sqlite3.Connection, batch: Batch, rows: Sequence[dict[str, Any]]) -> None:
        """Store the steps of an external run as one attempt, even after several starts. An earlier step removes later
        ones.
        """
        if batch.before.offset and batch.source.file not in self._last:
            for point in metrics.newest_points(connection, self._run, self._attempt, count=1):
                self._last[batch.source.file] = point.step
        for row in rows:
            if row["step"] < self._last.get(batch.source.file, 0):
                metrics.remove_steps(connection, self._run, self._attempt, 0, row["step"])
                logged_metrics.remove_steps(connection, self._run, self._attempt, 0, row["step"])
            self._last[batch.source.file] = row["step"]
            self._store_metrics(connection, 0, [row])
            if _is_step(row):
                metrics.add_points(connection, self._run, self._attempt, 0, [row])
        self._record_alerts(connection, 0, [row for row in rows if _is_step(row)])
        self._record_metric_alerts(connection, rows)

    def _record_metric_alerts(self, connection: sqlite3.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        logged = {name for row in rows for name in (*row, *row.get("metrics", ()))}
        for kind, detail in metric_alerts.of_metrics(connection, self._run, self._attempt, logged):
            self._record(connection, kind, detail)

    def _store_metrics(self, connection: sqlite3.Connection, rank: int, rows: Sequence[Mapping[str, Any]]) -> None:
        left_out = logged_metrics.add(connection, self._run, self._attempt, rank, rows)
        kind = EventKind.METRIC_NAMES_FULL
        if left_out and not run_store.has_event(connection, self._run, self._attempt, kind):
            self._record(connection, kind, {"metric": left_out[0], "most": logged_metrics.MOST_NAMES})

    def _store_points(self, connection: sqlite3.Connection, rank: int, rows: Sequence[dict[str, Any]]) -> None:
        metrics.add_points(connection, self._run, self._attempt, rank, rows)
        self._record_alerts(connection, rank, rows)

    def _record_alerts(self, connection: sqlite3.Connection, rank: int, rows: Sequence[Mapping[str, Any]]) -> None:
        steps = alerts.Steps(
            run=self._run,
            attempt=self._attempt,
            node=self._node_rank,
            rank=rank,
            rows=rows,
            first=self._first_step(connection, rank, rows),
        )
        for kind, detail in alerts.of_steps(connection, steps):
            self._record(connection, kind, detail)

    def _first_step(self, connection: sqlite3.Connection, rank: int, rows: Sequence[Mapping[str, Any]]) -> int | None:
        """Return the first stored step of a rank, which is read again only if an earlier step has arrived."""
        first = self._first.get(rank)
        if first is None or any(row["step"] < first for row in rows):
            first = metrics.first_step(connection, self._run, self._attempt, rank)
            if first is not None:
                self._first[rank] = first
        return first

    def _record(self, connection: sqlite3.Connection, kind: EventKind, detail: Mapping[str, Any]) -> None:
        run_store.append(
            connection,
            self._run,
            kind,
            time=self._clock(),
            attempt=self._attempt,
            rank=self._node_rank,
            detail=detail,
        )


def _is_step(row: Mapping[str, Any]) -> bool:
    """Return whether a record is of a step, and not only of numbers that were logged after it."""
    return "metrics" not in row or not row.keys() <= _ONLY_METRICS
