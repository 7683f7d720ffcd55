"""The database of the server: one SQLite file, one writer thread, and readers that never wait for it.

store = Store(home / "megaboard.db")
store.write(lambda connection: ...)       # one transaction on the writer thread
with store.read() as connection: ...      # one consistent snapshot

Only this module defines the schema. These modules write rows: run_store.py (runs, events), metrics.py (points, logs),
logged_metrics.py (numbers by name) and utilization.py (load of the nodes). These delete rows: deletion.py (whole runs)
and thinning.py (rows that nothing reads any more).
"""

import os
import queue
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from backend.job.problems import Problem, ProblemsError

T = TypeVar("T")

_INDEX_BYTES = 32 << 10
"""The smallest megaboard.db-shm."""
BUSY_TIMEOUT_S = 15.0
"""How long a write waits for another process, such as a command line beside the server."""
_SHORT_MS = 200
"""How long the end of the log waits for readers. Other writes wait too."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE draft (id INTEGER PRIMARY KEY CHECK (id = 1), job TEXT NOT NULL, updated REAL NOT NULL)",
        """CREATE TABLE runs (id TEXT PRIMARY KEY, name TEXT NOT NULL, engine TEXT NOT NULL, job TEXT NOT NULL,
            created REAL NOT NULL, ended REAL) WITHOUT ROWID""",
        """CREATE TABLE attempts (run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL, created REAL NOT NULL,
            master_address TEXT NOT NULL, master_port INTEGER NOT NULL, rendered TEXT NOT NULL,
            PRIMARY KEY (run, attempt)) WITHOUT ROWID""",
        """CREATE TABLE claims (address TEXT PRIMARY KEY, run TEXT NOT NULL REFERENCES runs) WITHOUT ROWID""",
        """CREATE TABLE nodes (run TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
            address TEXT NOT NULL, folder TEXT NOT NULL, python TEXT NOT NULL, setup TEXT, mark TEXT NOT NULL,
            clock_offset_s REAL NOT NULL, exit TEXT, stop TEXT, PRIMARY KEY (run, attempt, rank),
            FOREIGN KEY (run, attempt) REFERENCES attempts) WITHOUT ROWID""",
        """CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL REFERENCES runs,
            attempt INTEGER NOT NULL, rank INTEGER, kind TEXT NOT NULL, time REAL NOT NULL, detail TEXT NOT NULL)""",
        "CREATE INDEX events_run ON events (run, seq)",
        """CREATE TRIGGER events_stay BEFORE UPDATE ON events
            BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
        """CREATE TRIGGER events_last BEFORE DELETE ON events
            BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
        """CREATE TABLE points (seq INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL REFERENCES runs,
            attempt INTEGER NOT NULL, rank INTEGER NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL,
            total_steps INTEGER, step_s REAL, tokens INTEGER, loss REAL, grad_norm REAL, learning_rate REAL,
            epoch REAL, allocated_gib REAL, reserved_gib REAL, UNIQUE (run, attempt, rank, step))""",
        "CREATE INDEX points_rank ON points (run, rank, seq)",
        """CREATE TABLE offsets (run TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
            file TEXT NOT NULL, generation INTEGER NOT NULL, offset INTEGER NOT NULL, tail BLOB NOT NULL,
            PRIMARY KEY (run, attempt, rank, file),
            FOREIGN KEY (run, attempt, rank) REFERENCES nodes) WITHOUT ROWID""",
        """CREATE TABLE log_chunks (run TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
            file TEXT NOT NULL, generation INTEGER NOT NULL, offset INTEGER NOT NULL, data BLOB NOT NULL,
            PRIMARY KEY (run, attempt, rank, file, generation, offset),
            FOREIGN KEY (run, attempt, rank) REFERENCES nodes)""",
        """CREATE TABLE heartbeats (run TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
            time REAL NOT NULL, received REAL NOT NULL, data TEXT NOT NULL,
            PRIMARY KEY (run, attempt, rank, time),
            FOREIGN KEY (run, attempt, rank) REFERENCES nodes) WITHOUT ROWID""",
    ),
    (
        # allowed number of automatic restarts, and step of the checkpoint that an attempt resumed from
        "ALTER TABLE runs ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE attempts ADD COLUMN checkpoint_step INTEGER",
        """CREATE TABLE queue (run TEXT PRIMARY KEY REFERENCES runs, position INTEGER NOT NULL,
            not_before REAL NOT NULL) WITHOUT ROWID""",
        "CREATE TABLE launches (token TEXT PRIMARY KEY, run TEXT NOT NULL REFERENCES runs) WITHOUT ROWID",
    ),
    (
        # checkpoint of a run that the draft starts from
        "CREATE TABLE draft_source (id INTEGER PRIMARY KEY CHECK (id = 1), source TEXT NOT NULL)",
    ),
    (
        # newest event that the operator was notified of
        "CREATE TABLE messages_sent (id INTEGER PRIMARY KEY CHECK (id = 1), event INTEGER NOT NULL)",
    ),
    (
        # utilization of the nodes of a run, over all attempts (utilization.py)
        """CREATE TABLE usage (run TEXT NOT NULL REFERENCES runs, rank INTEGER NOT NULL, start INTEGER NOT NULL,
            width INTEGER NOT NULL, beats INTEGER NOT NULL, data TEXT NOT NULL,
            PRIMARY KEY (run, rank, start)) WITHOUT ROWID""",
    ),
    (
        # retention: the records of deleted runs (deletion.py), the runs without raw rows (thinning.py), the
        # rules (retention.py), and the past sizes of the database (sizes.py)
        """CREATE TABLE deleted_runs (run TEXT PRIMARY KEY, name TEXT NOT NULL, engine TEXT NOT NULL,
            created REAL NOT NULL, ended REAL, state TEXT NOT NULL, step INTEGER, tokens TEXT NOT NULL,
            deleted REAL NOT NULL, by TEXT NOT NULL, row_counts TEXT NOT NULL, archive TEXT, sha256 TEXT,
            cleared REAL) WITHOUT ROWID""",
        """CREATE TRIGGER deleted_runs_stay BEFORE UPDATE OF run, name, engine, created, ended, state, step, tokens,
            deleted, by, row_counts, archive, sha256 ON deleted_runs
            BEGIN SELECT RAISE(ABORT, 'records of deleted runs are append-only'); END""",
        """CREATE TRIGGER deleted_runs_last BEFORE DELETE ON deleted_runs
            BEGIN SELECT RAISE(ABORT, 'records of deleted runs are append-only'); END""",
        "DROP TRIGGER events_last",
        """CREATE TRIGGER events_last BEFORE DELETE ON events
            WHEN NOT EXISTS (SELECT 1 FROM deleted_runs d WHERE d.run = OLD.run)
            BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
        "CREATE TABLE thinned_runs (run TEXT PRIMARY KEY REFERENCES runs, time REAL NOT NULL) WITHOUT ROWID",
        "CREATE TABLE retention (id INTEGER PRIMARY KEY CHECK (id = 1), rules TEXT NOT NULL)",
        "CREATE TABLE storage_samples (time REAL PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID",
    ),
    (
        # the curves of a run at several widths (curve_levels.py), and how far each attempt's points are in them
        """CREATE TABLE curve_parts (run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL, seq INTEGER NOT NULL,
            generation INTEGER NOT NULL, first_step INTEGER NOT NULL, last_step INTEGER NOT NULL, losses BLOB NOT NULL,
            PRIMARY KEY (run, attempt)) WITHOUT ROWID""",
        """CREATE TABLE curve_levels (run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL,
            bits INTEGER NOT NULL, bucket INTEGER NOT NULL, data BLOB NOT NULL,
            PRIMARY KEY (run, attempt, bits, bucket)) WITHOUT ROWID""",
    ),
    (
        # every number that a training logs under a name (logged_metrics.py), a summary of each name, and the same
        # numbers at several widths (metric_levels.py)
        """CREATE TABLE metrics (run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
            name TEXT NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL, value REAL NOT NULL,
            PRIMARY KEY (run, attempt, rank, name, step)) WITHOUT ROWID""",
        """CREATE TABLE metric_series (run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL,
            rank INTEGER NOT NULL, name TEXT NOT NULL, count INTEGER NOT NULL, generation INTEGER NOT NULL,
            first_step INTEGER NOT NULL, last_step INTEGER NOT NULL, last REAL NOT NULL, lowest REAL,
            lowest_step INTEGER, highest REAL, highest_step INTEGER, waiting INTEGER NOT NULL,
            levels_step INTEGER NOT NULL, PRIMARY KEY (run, attempt, rank, name)) WITHOUT ROWID""",
        """CREATE TABLE metric_levels (run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL,
            rank INTEGER NOT NULL, name TEXT NOT NULL, bits INTEGER NOT NULL, bucket INTEGER NOT NULL,
            points BLOB NOT NULL, PRIMARY KEY (run, attempt, rank, name, bits, bucket)) WITHOUT ROWID""",
    ),
    (
        # tags, note and visibility of runs, as the operator set them (run_labels.py)
        """CREATE TABLE run_labels (run TEXT PRIMARY KEY REFERENCES runs, tags TEXT NOT NULL, note TEXT NOT NULL,
            is_hidden INTEGER NOT NULL) WITHOUT ROWID""",
    ),
    (
        # size of the rank's log when the step was logged, and the rules of alerts (alert_rules.py)
        "ALTER TABLE points ADD COLUMN log_offset INTEGER",
        """CREATE TABLE alert_rules (id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT, rule TEXT NOT NULL,
            created REAL NOT NULL)""",
    ),
    (
        # nodes on which no run starts until a user allows it again (node_replacement.py)
        """CREATE TABLE cordons (node TEXT PRIMARY KEY, run TEXT NOT NULL, time REAL NOT NULL,
            problem TEXT NOT NULL) WITHOUT ROWID""",
    ),
    (
        # runs that use the model of another run (derived_runs.py): a chat or an evaluation
        """CREATE TABLE derived_runs (run TEXT PRIMARY KEY REFERENCES runs, kind TEXT NOT NULL, trained TEXT NOT NULL,
            request TEXT NOT NULL) WITHOUT ROWID""",
        "CREATE INDEX derived_runs_trained ON derived_runs (trained)",
    ),
    (
        # answers and metrics of an evaluation, as its node wrote them (derived_runs.py)
        """CREATE TABLE evaluations (run TEXT PRIMARY KEY REFERENCES runs, result TEXT NOT NULL, time REAL NOT NULL)
            WITHOUT ROWID""",
    ),
)
"""One tuple of statements a schema version; version n is reached by running the first n. Append, never edit."""


class StoreError(ProblemsError):
    """The database refused.

    `code`: store_full, store_read_only, store_corrupt, store_locked, store_newer or store_failed.
    """

    def __init__(self, code: str, path: Path, reason: str) -> None:
        self.code = code
        self.problem = Problem(code=code, values={"path": str(path), "reason": reason})
        super().__init__([self.problem])
        self.args = (f"{code}: {path}: {reason}",)


class Store:
    """One database file, private to its owner (mode 0600). A missing file is created, an older one is upgraded.

    Safe for many threads, and for several processes at once. Raises StoreError. A transaction that fails changes
    nothing. On a disk that is full or read-only, an existing file can still be opened and read.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._jobs: queue.SimpleQueue[tuple[Callable[[sqlite3.Connection], Any], Future[Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._closed = False
        self.trouble: Problem | None = None
        """Why the newest write failed; None once a write has succeeded."""
        self._to_read = f"file:{quote(str(path))}?mode=ro"
        with self._typed():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            try:
                self._writer = self._open_writer()
            except sqlite3.OperationalError as error:
                if os.access(path.parent, os.W_OK):
                    raise
                self._writer = self._open_reader(str(error))
        self._thread = threading.Thread(target=self._serve, name="store-writer", daemon=True)
        self._thread.start()

    def write(self, change: Callable[[sqlite3.Connection], T], *, orphans: bool = False) -> T:
        """Run `change(connection)` in one transaction on the writer thread and return what it returns.

        An exception of `change` rolls everything back and is raised here. `orphans`: the change may delete a row that
        others refer to (deletion.py).
        """
        if orphans:
            return self._call(lambda connection: _without_foreign_keys(connection, change))
        return self._call(lambda connection: _transaction(connection, change))

    def vacuum(self) -> None:
        """Rewrite the database without its free pages, so that later deletions free space.

        Other writes wait meanwhile. Raises StoreError; without disk space for a second copy, the file is unchanged.
        """
        self._call(_vacuum)

    def give_back_pages(self, count: int) -> None:
        """Cut up to `count` free pages off the file, if this version created the file or vacuumed it."""
        self._call(lambda connection: _give_back(connection, count))

    def shrink_log(self) -> None:
        """Free the disk space of the write-ahead log, unless a reader uses an older state."""
        self._call(_shrink_log)

    def _call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if threading.current_thread() is self._thread:
            raise RuntimeError("write() inside write(): pass the connection on instead")
        if self._closed:
            raise StoreError("store_failed", self.path, "closed")
        answer: Future[T] = Future()
        self._jobs.put((work, answer))
        try:
            with self._typed():
                result = answer.result()
        except StoreError as error:
            self.trouble = error.problem
            raise
        self.trouble = None
        return result

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Return a read-only connection that sees one consistent state."""
        with self._typed():
            try:
                connection = self._idle.get_nowait()
            except queue.Empty:
                connection = _connect(self._to_read)
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")
                self._idle.put(connection)

    def get_draft(self) -> str | None:
        """Return the draft's job file; None before the first."""
        with self.read() as connection:
            row = connection.execute("SELECT job FROM draft").fetchone()
        return None if row is None else str(row[0])

    def set_draft(self, text: str) -> None:
        """Replace the draft's job file."""
        values = (text, self._clock())
        self.write(lambda connection: connection.execute("REPLACE INTO draft VALUES (1, ?, ?)", values))

    def get_draft_source(self) -> str | None:
        """Return the checkpoint that the draft starts from, as it was set; None for the beginning."""
        with self.read() as connection:
            row = connection.execute("SELECT source FROM draft_source").fetchone()
        return None if row is None else str(row[0])

    def set_draft_source(self, text: str | None) -> None:
        """Set or remove the checkpoint that the draft starts from."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM draft_source")
            if text is not None:
                connection.execute("INSERT INTO draft_source VALUES (1, ?)", (text,))

        self.write(write)

    def close(self) -> None:
        """Finish the writes in progress and close the file."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        self._thread.join()
        while not self._idle.empty():
            self._idle.get_nowait().close()

    def _serve(self) -> None:
        while (item := self._jobs.get()) is not None:
            work, answer = item
            try:
                answer.set_result(work(self._writer))
            except BaseException as error:  # the caller's thread raises it
                answer.set_exception(error)
        self._writer.close()

    def _open_writer(self) -> sqlite3.Connection:
        connection = _connect(f"file:{quote(str(self.path))}?mode=rw")
        if not _version(connection):  # only vacuum() changes it in a file that has tables
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # a recorded event must survive a power cut
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = FAST")  # Debian's default writes every deleted page once more
        if _version(connection) != len(MIGRATIONS):  # without an upgrade, a full disk can still be read
            _transaction(connection, self._upgrade)
        return connection

    def _open_reader(self, reason: str) -> sqlite3.Connection:
        """Open the database in a folder that cannot be written, for reading. Each write reports the reason."""
        log = self.path.with_name(f"{self.path.name}-wal")
        if not log.exists() or not log.stat().st_size:
            # Without a log nothing changes the file, so SQLite need not write the log's index beside it.
            self._to_read += "&immutable=1"
        connection = _connect(self._to_read)
        if (version := _version(connection)) != len(MIGRATIONS):
            detail = f"{reason}; schema {version} cannot be brought to {len(MIGRATIONS)} there"
            raise StoreError("store_newer" if version > len(MIGRATIONS) else "store_read_only", self.path, detail)
        self.trouble = StoreError("store_read_only", self.path, reason).problem
        return connection

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        version = _version(connection)
        if version > len(MIGRATIONS):
            raise StoreError("store_newer", self.path, f"schema {version}, this version knows {len(MIGRATIONS)}")
        for statement in (statement for migration in MIGRATIONS[version:] for statement in migration):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(_code(error, self.path), self.path, str(error)) from error
        except OSError as error:
            raise StoreError("store_failed", self.path, str(error)) from error


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _connect(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S)
    connection.row_factory = sqlite3.Row
    return connection


def _transaction(connection: sqlite3.Connection, change: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = change(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite ends it by itself on some errors, a full disk for one
            connection.execute("ROLLBACK")
        raise
    return result


def _without_foreign_keys(connection: sqlite3.Connection, change: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("PRAGMA foreign_keys = OFF")
    try:
        return _transaction(connection, change)
    finally:
        connection.execute("PRAGMA foreign_keys = ON")


def _vacuum(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("VACUUM")
    _shrink_log(connection)


def _give_back(connection: sqlite3.Connection, count: int) -> None:
    connection.execute(f"PRAGMA incremental_vacuum({count:d})").fetchall()


def _shrink_log(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA busy_timeout = {_SHORT_MS}")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.execute(f"PRAGMA busy_timeout = {round(1000 * BUSY_TIMEOUT_S)}")


def _code(error: sqlite3.Error, path: Path) -> str:
    name = getattr(error, "sqlite_errorname", "") or ""
    # The index of the log is the first file for which the disk has no room. SQLite reports that as an I/O error.
    if name == "SQLITE_FULL" or (name.startswith("SQLITE_IOERR") and shutil.disk_usage(path).free < _INDEX_BYTES):
        return "store_full"
    if name.startswith("SQLITE_READONLY"):
        return "store_read_only"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return "store_corrupt"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "store_locked"
    return "store_failed"
