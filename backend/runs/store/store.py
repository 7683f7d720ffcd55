"""The database of the server: one SQLite file, one writer thread, and readers that never wait for it.

store = Store(home / "megaboard.db")
store.write(lambda connection: ...)       # one transaction on the writer thread
with store.read() as connection: ...      # one consistent snapshot

schema.py defines the tables. These modules write rows: run_store.py (runs, events), metrics.py (points, logs),
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
from backend.runs.store.schema import MIGRATIONS

T = TypeVar("T")

_INDEX_BYTES = 32 << 10
"""The smallest megaboard.db-shm."""
BUSY_TIMEOUT_S = 15.0
"""How long a write waits for another process, such as a command line beside the server."""
_SHORT_MS = 200
"""How long the end of the log waits for readers. Other writes wait too."""


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
