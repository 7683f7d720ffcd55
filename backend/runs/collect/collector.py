"""Collects the records of a run on one node: steps, heartbeats, logs and the exit, every byte exactly once.

Files are read from a byte offset. Of a log that is far behind, only the newest part is read. One transaction stores
what one poll read, together with the new offsets. The exit record is stored after every other file was read to its end.
So a node whose exit is in the store has no unread records. batch_writer.py writes the rows and events.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backend.cluster.node import Node, NodeError
from backend.runs.collect import flight_records
from backend.runs.collect.batch_writer import BatchWriter, NodeEnd
from backend.runs.collect.clocks import NodeClock
from backend.runs.collect.external_logs import with_metrics
from backend.runs.collect.log_offset import offset_to_read
from backend.runs.collect.node_files import Batch, RecordFile, files_of
from backend.runs.collect.node_records import Bad, Exit, Heartbeat, ReadLines, Step, TrainerLine, read_exit, read_lines
from backend.runs.collect.tensorboard import read_events
from backend.runs.rank_secrets import SECRETS
from backend.runs.records import NodeRecord
from backend.runs.redact import settled
from backend.runs.store import attempts, metrics
from backend.runs.store.metrics import FileOffset, OffsetConflict
from backend.runs.store.store import Store

READ_LIMIT = 1 << 20
"""Bytes read of one file in one poll; a backlog takes several polls."""
TAIL = 32
"""Bytes that are read again before the offset, to detect a truncated or replaced file."""

_SHAPES: Mapping[str, Any] = {"points": Step, "heartbeats": Heartbeat, "trainer_log": TrainerLine}
"""Kind of file -> type of the record in each line."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Polled:
    """Result of one poll."""

    heartbeat: bool
    """Whether a new heartbeat arrived, or another collector has just read the node."""
    more: bool
    """Whether more data is waiting. Then poll again at once."""
    ended: bool
    """Whether the node has ended and all its records are in the store."""


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
        external_sources: Sequence[RecordFile] | None = None,
    ) -> None:
        """`external_sources`: the files of an external run, which has no exit record."""
        self._store = store
        self._run = run
        self._attempt = attempt
        self._node = node
        self._sources = files_of(ranks) if external_sources is None else external_sources
        self._ends = external_sources is None
        self._writer = BatchWriter(run, attempt, node.rank, clock)
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
            end = None if done is None else self._node_end(node, done, bad_exit)
            try:
                self._store.write(lambda connection: self._writer.write(connection, fresh, end))
            except OffsetConflict:
                self._offsets = self._load()
                return Polled(heartbeat=True, more=True, ended=False)
            self._offsets.update({batch.source.file: batch.after for batch in fresh})
            self._writer.settle()
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

    def _node_end(self, node: Node, ended: Exit, bad: Bad) -> NodeEnd:
        withheld = set() if self._masked is None else self._withheld
        return NodeEnd(exit=ended, bad=bad, withheld=withheld, flight_records=self._copy_flight_records(node))

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

    def _read(self, node: Node, source: RecordFile, ended: bool) -> Batch | None:
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
        lines = read_lines(new, shape, prepare) if shape else ReadLines((), Bad())
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

    def _note_refusal(self, error: NodeError, source: RecordFile) -> None:
        """Log the refusal of a file once. A log that became a pipe or a device does not end the run."""
        if error.code == "not_a_file" and source.file not in self._refused:
            self._refused.add(source.file)
            _log.warning("%s of %s is not read: %s", source.file, self._run, error)


def _event_batch(source: RecordFile, before: FileOffset, start: FileOffset, data: bytes, whole: bool) -> Batch:
    """Return the records of an event file. After a record that is passed over unread, the offset has no hash."""
    new = data[len(start.tail) :]
    rows, used, bad = read_events(new, start.offset)
    tail = _tail_of(data[: len(start.tail) + used][-TAIL:]) if used <= len(new) else b""
    after = replace(start, offset=start.offset + used, tail=tail)
    return Batch(
        source=source, before=before, start=start, after=after, data=new[:used], whole=whole, lines=ReadLines(rows, bad)
    )


def _unchanged(value: Any) -> Any:
    return value


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
