"""Collects the records of a run on one node: steps, heartbeats, logs and the exit, every byte exactly once.

Files are read from a byte offset. Of a log that is far behind, only the newest part is read. One transaction stores
what one poll read, together with the new offsets. The exit record is stored after every other file was read to its end.
So a node whose exit is in the store has no unread records.
"""

import hashlib
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from backend.cluster.node import Node, NodeError
from backend.runs.collect import bad_records, flight_records
from backend.runs.collect.clocks import NodeClock
from backend.runs.collect.external_logs import Before, megatron_rows, trainer_log_rows, with_metrics
from backend.runs.collect.log_offset import offset_to_read
from backend.runs.collect.node_records import Bad, Exit, Heartbeat, Lines, Step, TrainerLine, read_exit, read_lines
from backend.runs.collect.step_tokens import RATE, count_tokens
from backend.runs.collect.tensorboard import read_events
from backend.runs.diagnosis import alerts, gpu_errors, metric_alerts
from backend.runs.rank_secrets import SECRETS
from backend.runs.records import NodeRecord
from backend.runs.redact import masked, settled
from backend.runs.states import EventKind
from backend.runs.store import attempts, logged_metrics, metrics, run_store
from backend.runs.store.metrics import FileKey, FileOffset, OffsetConflict
from backend.runs.store.store import Store

READ_LIMIT = 1 << 20
"""Bytes read of one file in one poll; a backlog takes several polls."""
TAIL = 32
"""Bytes that are read again before the offset, to detect a truncated or replaced file."""

OTHER_RANKS_EVERY = 5
"""Polls between two reads of a rank that is not its node's first. A read costs 1 ms of processor time, and 32 nodes of
8 ranks have 608 files.
"""

_SHAPES: Mapping[str, Any] = {"points": Step, "heartbeats": Heartbeat, "trainer_log": TrainerLine}
"""Kind of file -> type of the record in each line."""

_ONLY_METRICS = {"step", "time", "metrics"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file in the run folder of a node, and the kind of its records."""

    file: str
    kind: Literal["points", "heartbeats", "log", "trainer_log", "megatron_log", "tensorboard"]
    """The last three belong to an external run. megatron_log is also shown as a log."""
    rank: int = 0
    """Global rank of the points."""
    every: int = 1
    """The file is read at every n-th poll."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """New bytes of one file. They begin at `start` and end at `after`; `before` is the offset in the store."""

    source: Source
    before: FileOffset
    start: FileOffset
    after: FileOffset
    data: bytes
    whole: bool
    """Whether the file was read to its end."""
    lines: Lines
    """The records in the data; empty for a log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Polled:
    """Result of one poll."""

    heartbeat: bool
    """Whether a new heartbeat arrived, or another collector has just read the node."""
    more: bool
    """Whether more data is waiting. Then poll again at once."""
    ended: bool
    """Whether the node has ended and all its records are in the store."""


def sources(ranks: Sequence[int]) -> tuple[Source, ...]:
    """Return the files of a node with these global ranks. The files of its first rank are read at every poll, the
    others less often.
    """
    files = [Source(file="heartbeat.jsonl", kind="heartbeats"), Source(file="out.log", kind="log")]
    for rank in ranks:
        every = 1 if rank == ranks[0] else OTHER_RANKS_EVERY
        files.append(Source(file=f"steps.rank{rank}.jsonl", kind="points", rank=rank, every=every))
        files.append(Source(file=f"rank{rank}.log", kind="log", every=every))
    return tuple(files)


class Collector:
    """Collects one node of one attempt. Not safe for several threads. Several collectors of one node do no harm."""

    def __init__(
        self,
        store: Store,
        run: str,
        attempt: int,
        node: NodeRecord,
        ranks: Sequence[int],
        clock: Callable[[], float],
        *,
        external_sources: Sequence[Source] | None = None,
    ) -> None:
        """`external_sources`: the files of an external run, which has no exit record."""
        self._store = store
        self._run = run
        self._attempt = attempt
        self._node = node
        self._sources = sources(ranks) if external_sources is None else external_sources
        self._ends = external_sources is None
        self._before: Before = {}
        self._last: dict[str, int] = {}
        """The newest step in the file of an external run."""
        self._bad = bad_records.Counts()
        self._clock = clock
        self._node_clock = NodeClock(node.clock_offset_s)
        self._offsets = self._load()
        self._turn = 0
        with store.read() as connection:
            secret_names = attempts.secret_names(connection, run, attempt)
        self._masked: Mapping[str, int] | None = {} if secret_names else None
        """Offset up to which the supervisor has masked each log, from its newest heartbeat; None: it masks nothing."""
        self._knows_secrets = set(secret_names) <= set(SECRETS.names())
        self._withheld: set[str] = set()
        """Logs with bytes after the masked part."""
        self._refused: set[str] = set()

    def poll(self, node: Node) -> Polled:
        """Read and store the new records of the node. Raises NodeError and StoreError; then no record is stored."""
        ended, bad_exit = self._read_exit(node) if self._ends else (None, Bad())
        due = [source for source in self._sources if ended is not None or self._turn % source.every == 0]
        self._turn += 1
        requested_at = self._clock()
        if ended is not None and (self._knows_secrets or _saw_all_ends(ended)):
            self._masked = None
        batches = [batch for source in due if (batch := self._read(node, source, ended is not None)) is not None]
        more = any(not batch.whole for batch in batches)
        fresh = [batch for batch in batches if batch.data]
        done = ended if ended is not None and not more else None
        self._note_clock(requested_at, batches)
        if fresh or done is not None:
            records = self._copy_flight_records(node) if done is not None else []
            try:
                self._store.write(lambda connection: self._commit(connection, fresh, done, bad_exit, records))
            except OffsetConflict:
                self._offsets = self._load()
                return Polled(heartbeat=True, more=True, ended=False)
            self._offsets.update({batch.source.file: batch.after for batch in fresh})
            self._bad.settle()
        heartbeat = any(batch.source.kind == "heartbeats" for batch in fresh)
        return Polled(heartbeat=heartbeat, more=more, ended=done is not None)

    def _note_clock(self, requested_at: float, batches: Sequence[Batch]) -> None:
        beats = next((batch for batch in batches if batch.source.kind == "heartbeats"), None)
        if beats is None:
            return
        time = beats.lines.rows[-1]["time"] if beats.lines.rows else None
        offset_s = self._node_clock.note(requested_at, self._clock(), time, whole=beats.whole)
        if offset_s is not None:
            _log.warning("the clock of node %d of %s is %+.0f s off ours now", self._node.rank, self._run, offset_s)
            self._store.write(
                lambda c: attempts.set_clock_offset(c, self._run, self._attempt, self._node.rank, offset_s)
            )
            self._node_clock.offset_s = offset_s

    def _copy_flight_records(self, node: Node) -> list[str]:
        into = flight_records.folder_of(self._store.path.parent, self._run, self._attempt)
        ranks = sorted({source.rank for source in self._sources if source.kind == "points"})
        return [str(into / name) for name in flight_records.copy_records(node, self._node.folder, ranks, into)]

    def _load(self) -> dict[str, FileOffset]:
        with self._store.read() as connection:
            return metrics.offsets(connection, self._run, self._attempt, self._node.rank)

    def _read_exit(self, node: Node) -> tuple[Exit | None, Bad]:
        """Return the exit of the node. Any content of the file ends the node, because nothing follows it."""
        try:
            data = node.read(f"{self._node.folder}/exit")
        except NodeError as error:
            if error.code == "missing_file":
                return None, Bad()
            raise
        return read_exit(data, self._clock() + self._node_clock.offset_s)

    def _read(self, node: Node, source: Source, ended: bool) -> Batch | None:
        path = f"{self._node.folder}/{source.file}"
        before = start = self._offsets.get(source.file, FileOffset())
        try:
            data = node.read(path, before.offset - len(before.tail), READ_LIMIT)
            if _tail_of(data[: len(before.tail)]) != before.tail:
                start = FileOffset(generation=before.generation + 1)
                data = node.read(path, 0, READ_LIMIT)
            whole = len(data) < READ_LIMIT
            if source.kind == "tensorboard":
                return _event_batch(source, before, start, data, whole)
            if source.kind == "log" and not whole:
                start, data = _skip_to_newest(node, path, start, data)
        except NodeError as error:
            if error.code in ("missing_file", "not_a_file"):
                self._note_refusal(error, source)
                return None
            raise
        new = data[len(start.tail) :]
        if source.kind != "log":
            new = _complete_lines(new, whole)
        elif self._masked is not None:
            new = self._masked_part(source.file, start.offset, new)
            whole = whole or source.file in self._withheld  # a later heartbeat reports the rest as masked
        elif not (whole and ended):
            new = new[: settled(new)]
        read = data[: len(start.tail) + len(new)]
        after = replace(start, offset=start.offset + len(new), tail=_tail_of(read[-TAIL:]))
        shape = _SHAPES.get(source.kind)
        prepare = with_metrics if source.kind == "trainer_log" else _unchanged
        lines = read_lines(new, shape, prepare) if shape else Lines((), Bad())
        if source.kind == "heartbeats":
            self._note_masked(lines.rows)
        return Batch(source=source, before=before, start=start, after=after, data=new, whole=whole, lines=lines)

    def _masked_part(self, file: str, offset: int, new: bytes) -> bytes:
        limit = max(0, (self._masked or {}).get(file, 0) - offset)
        (self._withheld.add if len(new) > limit else self._withheld.discard)(file)
        return new[: settled(new[:limit])]

    def _note_masked(self, beats: Sequence[Mapping[str, Any]]) -> None:
        if beats and self._masked is not None:
            # A supervisor of an older version masks nothing.
            self._masked = beats[-1].get("masked")

    def _note_refusal(self, error: NodeError, source: Source) -> None:
        """Log the refusal of a file once. A log that became a pipe or a device does not end the run."""
        if error.code == "not_a_file" and source.file not in self._refused:
            self._refused.add(source.file)
            _log.warning("%s of %s is not read: %s", source.file, self._run, error)

    def _commit(
        self,
        connection: sqlite3.Connection,
        batches: Sequence[Batch],
        ended: Exit | None,
        bad_exit: Bad,
        records: Sequence[str],
    ) -> None:
        for batch in batches:
            key = FileKey(run=self._run, attempt=self._attempt, rank=self._node.rank, file=batch.source.file)
            metrics.advance(connection, key, batch.before, batch.after)
            self._record_bad(connection, key, batch.lines.bad)
            if batch.source.kind == "points":
                self._add_points(connection, batch)
            elif batch.source.kind == "heartbeats":
                rows = batch.lines.rows
                metrics.add_heartbeats(connection, self._run, self._attempt, self._node.rank, rows, self._clock())
                self._record_stuck(connection, rows)
            elif batch.source.kind == "trainer_log":
                steps = trainer_log_rows(batch.lines.rows, self._clock(), self._before)
                self._store_external(connection, batch, steps)
            elif batch.source.kind == "tensorboard":
                # A value that another file has stored stays, and no step is taken back: the logs say what was replaced.
                self._store_metrics(connection, 0, batch.lines.rows)
                self._record_metric_alerts(connection, batch.lines.rows)
            else:
                metrics.add_log(connection, key, batch.start, masked(batch.data))
                if batch.source.kind == "megatron_log":
                    self._store_external(connection, batch, megatron_rows(batch.data, self._clock()))
        if ended is not None and attempts.set_exit(connection, self._run, self._attempt, self._node.rank, ended):
            self._record(connection, EventKind.NODE_EXITED, ended)
            key = FileKey(run=self._run, attempt=self._attempt, rank=self._node.rank, file="exit")
            self._record_bad(connection, key, bad_exit)
            if self._masked is not None and self._withheld:
                self._record(connection, EventKind.LOG_WITHHELD, {"files": sorted(self._withheld)})
            if records:
                self._record(connection, EventKind.FLIGHT_RECORDS, {"files": records})
            self._record_gpu_errors(connection, ended)

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
        if stuck and not run_store.has_event(connection, self._run, self._attempt, kind, self._node.rank):
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
        steps = alerts.Steps(run=self._run, attempt=self._attempt, node=self._node.rank, rank=rank, rows=rows)
        for kind, detail in alerts.of_steps(connection, steps):
            self._record(connection, kind, detail)

    def _record(self, connection: sqlite3.Connection, kind: EventKind, detail: Mapping[str, Any]) -> None:
        run_store.append(
            connection,
            self._run,
            kind,
            time=self._clock(),
            attempt=self._attempt,
            rank=self._node.rank,
            detail=detail,
        )


def _event_batch(source: Source, before: FileOffset, start: FileOffset, data: bytes, whole: bool) -> Batch:
    """Return the records of an event file. After a record that is passed over unread, the offset has no hash."""
    new = data[len(start.tail) :]
    rows, used, bad = read_events(new, start.offset)
    tail = _tail_of(data[: len(start.tail) + used][-TAIL:]) if used <= len(new) else b""
    after = replace(start, offset=start.offset + used, tail=tail)
    return Batch(
        source=source, before=before, start=start, after=after, data=new[:used], whole=whole, lines=Lines(rows, bad)
    )


def _unchanged(value: Any) -> Any:
    return value


def _is_step(row: Mapping[str, Any]) -> bool:
    """Return whether a record is of a step, and not only of numbers that were logged after it."""
    return "metrics" not in row or not row.keys() <= _ONLY_METRICS


def _saw_all_ends(ended: Exit) -> bool:
    """Return whether the supervisor saw the end of all processes. Then it has masked every log to its end."""
    return not ended.get("gone") and ended.get("left") == []


def _skip_to_newest(node: Node, path: str, start: FileOffset, data: bytes) -> tuple[FileOffset, bytes]:
    """Return the offset and the data that was read there. For a log that is far behind, skip to the first whole line of
    the kept part.
    """
    offset = offset_to_read(node, path, start.offset, keep=metrics.LOG_BYTES_KEPT, grain=READ_LIMIT)
    if offset == start.offset:
        return start, data
    data = node.read(path, offset, READ_LIMIT)
    cut = data.find(b"\n") + 1
    return FileOffset(generation=start.generation + 1, offset=offset + cut), data[cut:]


def _tail_of(data: bytes) -> bytes:
    """Return a hash of the last bytes before an offset: it detects a change and contains no secret."""
    return hashlib.sha256(data).digest()[: len(data)]


def _complete_lines(data: bytes, whole: bool) -> bytes:
    """Return the data up to the last line end. An incomplete line is read when it is complete."""
    end = data.rfind(b"\n") + 1
    # A longer line is no record of ours. Its end may never come.
    return data[:end] if end or whole else data
