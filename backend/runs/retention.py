"""Retention of the data of runs: the operator's rules, deletion by hand, and freed space.

The data of a run stays until the run has ended and its nodes have proved that no process of it is left.
"""

import json
import logging
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from backend.job.problems import Problem, ProblemsError
from backend.runs.launch.launch_lock import launch_lock
from backend.runs.store import deletion, thinning
from backend.runs.store import sizes as storage
from backend.runs.store.archive import ReportRows, archive, archive_folder
from backend.runs.store.backup import backup_path
from backend.runs.store.deletion import By, Deleted
from backend.runs.store.sizes import RunSize, Storage
from backend.runs.store.store import Store, StoreError
from backend.runs.supervise.reaper import FORGOTTEN_AFTER_S, unproved_nodes

_log = logging.getLogger(__name__)

PAGES_AT_ONCE, PAGES_LEFT = 2000, 250
"""Free pages that one transaction cuts off the file (8 MB), and free pages that stay for new rows."""
DELETE_ROOM = 16 << 20
"""Upper limit of the bytes that a deletion writes before it frees space."""
MOST_DAYS = 36_500


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Days after a run's end until data is deleted; None: never."""

    raw_days: int | None = 14
    """Raw rows that nothing reads any more (thinning.py)."""
    run_days: int | None = None
    """The whole run."""
    archive: bool = True
    """Archive a run in the home folder before `run_days` deletes it."""

    def __post_init__(self) -> None:
        for name in ("raw_days", "run_days"):
            days = getattr(self, name)
            if days is not None and (type(days) is not int or not 0 <= days <= MOST_DAYS):
                raise ProblemsError([Problem(code="bad_days", field=name, values={"most": MOST_DAYS})])


class Retention:
    """Deletes, archives and thins runs of one home folder. Safe for many threads and for several processes.

    `audit(action, **fields)` records each deletion before and after it.
    """

    def __init__(
        self,
        home: Path,
        store: Store,
        *,
        clock: Callable[[], float] = time.time,
        audit: Callable[..., None] = lambda action, **fields: None,
    ) -> None:
        self._home = home
        self._store = store
        self._clock = clock
        self._audit = audit
        self._not_cleared: set[str] = set()
        """Deleted runs whose files could not be removed; each is logged once."""

    def rules(self) -> Rules:
        """Return the current rules; the defaults if none were set, or if another version set unreadable ones."""
        with self._store.read() as connection:
            row = connection.execute("SELECT rules FROM retention").fetchone()
        try:
            return Rules(**json.loads(row["rules"])) if row else Rules()
        except (ValueError, TypeError, ProblemsError) as error:
            _log.error("the rules of retention cannot be read (%s): nothing is dropped", error)
            return Rules(raw_days=None)

    def set_rules(self, rules: Rules) -> None:
        """Set the rules. After ProblemsError(audit_failed) and StoreError nothing is changed."""
        self._audit("retention_rules", **asdict(rules))
        text = json.dumps(asdict(rules))
        self._store.write(lambda connection: connection.execute("REPLACE INTO retention VALUES (1, ?)", (text,)))

    def storage(self) -> Storage:
        """Return the sizes of the files, and the growth of the database."""
        return storage.measure(self._store, self._home, self._clock())

    def run_sizes(self) -> list[RunSize]:
        """Return the size of each run, newest first."""
        with self._store.read() as connection:
            runs = [row["id"] for row in connection.execute("SELECT id FROM runs ORDER BY created DESC, id DESC")]
            return [self._size(connection, run) for run in runs]

    def run_size(self, run: str) -> RunSize:
        """Return the size of one run. ProblemsError(unknown_run, run_deleted, run_archived)."""
        with self._store.read() as connection:
            return self._size(connection, run)

    def deleted(self) -> list[Deleted]:
        """Return the records of deleted runs, newest first."""
        with self._store.read() as connection:
            return deletion.deleted_runs(connection)

    def default_archive(self) -> Path:
        """Return the default folder for archives."""
        return archive_folder(self._home)

    def refuse_unless_over(self, run: str) -> None:
        """Raise ProblemsError if `delete` would refuse the run now."""
        with self._store.read() as connection:
            deletion.refuse_unless_over(connection, run, proofs_since=self._proofs_since("page"))

    def delete(
        self, run: str, *, by: By, archive_to: Path | None = None, report: ReportRows = lambda rows: None
    ) -> Deleted:
        """Delete an ended run. If an archive folder is given, first write the archive and read it back.

        Raises ProblemsError: as deletion.refuse_unless_over; run_busy, run_changed, archive_*, delete_no_room. Once the
        deletion is recorded, no page shows the run. The next `tick` of any process continues an interrupted deletion.
        """
        now, proofs_since = self._clock(), self._proofs_since(by)
        with self._store.read() as connection:
            deletion.refuse_unless_over(connection, run, proofs_since=proofs_since)
        self._audit("delete", run=run, by=by, archive=str(archive_to) if archive_to else None)
        try:
            with launch_lock(self._home, run):
                archived = (
                    archive(self._store, self._home, run, archive_to, now=now, report=report) if archive_to else None
                )
                record = self._store.write(
                    lambda c: deletion.begin(c, run, now=now, by=by, proofs_since=proofs_since, archived=archived),
                    orphans=True,
                )
        except BlockingIOError:
            raise ProblemsError([Problem(code="run_busy", values={"run": run})]) from None
        except StoreError as error:
            raise (self._no_room(run) if error.code == "store_full" else error) from error
        self._audit("deleted", **{name: getattr(record, name) for name in _AUDITED})
        self._clear(run)
        return record

    def tick(self) -> None:
        """Continue interrupted deletions, apply the rules, and free space."""
        with self._store.read() as connection:
            interrupted = deletion.unfinished(connection)
        for run in interrupted:
            self._clear(run)
        self.apply_rules()
        self._give_back()
        storage.sample(self._store, self._clock())

    def apply_rules(self) -> tuple[int, int]:
        """Apply the rules now; return (runs whose raw rows were dropped, runs that were deleted)."""
        rules, now = self.rules(), self._clock()
        thinned = deleted = 0
        if rules.raw_days is not None:
            with self._store.read() as connection:
                due = thinning.due(connection, now - 86400.0 * rules.raw_days)
            thinned = sum(self._try(run, lambda run: self._thin(run, now)) for run in due)
        if rules.run_days is not None:
            folder = self.default_archive() if rules.archive else None
            for run in self._ended_before(now - 86400.0 * rules.run_days):
                deleted += self._try(run, lambda run: self.delete(run, by="rule", archive_to=folder))
        if thinned:
            self._give_back()
            storage.forget_samples(self._store)
        return thinned, deleted

    def compact(self) -> None:
        """Rewrite the database without its free pages; other writes wait. Raises ProblemsError(no_room_to_compact)."""
        with self._store.read() as connection:
            page, count, free = (storage.pragma(connection, name) for name in _PAGES)
        used_bytes = page * (count - free)
        # SQLite makes the copy in its folder for temporary files, then writes it through the log beside the database.
        for folder in (self._home, Path(tempfile.gettempdir())):
            if (room := shutil.disk_usage(folder).free) < 2 * used_bytes + _MARGIN:
                values = {"path": str(folder), "needed_mb": (2 * used_bytes + _MARGIN) >> 20, "free_mb": room >> 20}
                raise ProblemsError([Problem(code="no_room_to_compact", values=values)])
        self._audit("compact", bytes=page * count)
        self._store.vacuum()
        storage.forget_samples(self._store)

    def _thin(self, run: str, now: float) -> None:
        rows = thinning.thin(self._store, run, now=now)
        if rows:
            self._audit("raw_rows_dropped", run=run, rows=rows)

    def _no_room(self, run: str) -> ProblemsError:
        backup = backup_path(self._store.path)
        values = {
            "run": run,
            "path": str(self._store.path),
            "needed_mb": DELETE_ROOM >> 20,
            "spare": str(backup),
            "spare_mb": (backup.stat().st_size if backup.exists() else 0) >> 20,
        }
        return ProblemsError([Problem(code="delete_no_room", values=values)])

    def _clear(self, run: str) -> None:
        """Delete the data of a deleted run. After an error with its files, the next tick tries again.

        Raises StoreError.
        """
        try:
            deletion.clear(self._store, self._home, run, now=self._clock())
            self._not_cleared.discard(run)
        except OSError as error:
            if run in self._not_cleared:
                return
            _log.warning("what is left of the deleted run %s cannot be removed yet: %s", run, error)
            self._not_cleared.add(run)
        self._give_back()
        storage.forget_samples(self._store)

    def _give_back(self) -> None:
        """Cut free pages off the file, if the file allows it."""
        while True:
            with self._store.read() as connection:
                free = storage.pragma(connection, "freelist_count")
                if storage.pragma(connection, "auto_vacuum") != 2 or free <= PAGES_LEFT:
                    break
            self._store.give_back_pages(min(PAGES_AT_ONCE, free - PAGES_LEFT))
        self._store.shrink_log()

    def _ended_before(self, when: float) -> list[str]:
        with self._store.read() as connection:
            rows = connection.execute("SELECT id FROM runs WHERE ended < ? ORDER BY ended", (when,)).fetchall()
            unproved = {node.run for node in unproved_nodes(connection, 0.0)} if rows else set()
        return [row["id"] for row in rows if row["id"] not in unproved]

    def _try(self, run: str, work: Callable[[str], object]) -> bool:
        """Return whether `work` succeeded for a run. An unreadable run does not block the others. Raises StoreError."""
        try:
            work(run)
        except StoreError:
            raise
        except ProblemsError as error:
            _log.warning("retention leaves %s alone: %s", run, error)
            return False
        return True

    def _proofs_since(self, by: By) -> float:
        """Return since when an ended run needs proofs: always for a rule, else while the reaper asks for them."""
        return 0.0 if by == "rule" else self._clock() - FORGOTTEN_AFTER_S

    def _size(self, connection: sqlite3.Connection, run: str) -> RunSize:
        return storage.run_size(connection, self._home, run, proofs_since=self._proofs_since("page"))


_PAGES = ("page_size", "page_count", "freelist_count")
_MARGIN = 64 << 20
_AUDITED = ("run", "name", "state", "step", "by", "row_counts", "archive", "sha256")
