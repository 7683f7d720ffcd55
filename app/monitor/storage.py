"""The storage view for the browser: sizes and deletions. Slow work runs in its own thread."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.text import render_problem
from app.text.storage import folders_on_nodes, kind_words, size_words
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import RunSize, Storage
from backend.runs.database import Database
from backend.runs.retention import Retention, Rules

_log = logging.getLogger(__name__)

SIZES_FRESH_S = 60.0
"""Maximum age of shown sizes."""
DELETED_SHOWN = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Deletion:
    """The state of a deletion that a page started, or of the compaction of the database."""

    archive: bool = False
    rows: int = 0
    """Rows that were written into the archive."""
    path: str | None = None
    is_done: bool = False
    problem: Problem | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measurement:
    when: float
    storage: Storage
    runs: list[RunSize]


class StorageView:
    """The storage view. Thread-safe. The list of started deletions ends with the server; the store's records stay."""

    def __init__(self, retention: Retention, database: Database, clock: Callable[[], float]) -> None:
        self._retention = retention
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._deletions: dict[str, Deletion] = {}
        self._compacting: Deletion | None = None
        self._measurement: _Measurement | None = None
        self._is_measuring = False
        self._sizes: dict[str, tuple[float, RunSize]] = {}

    def delete(self, run: str, *, archive: bool) -> None:
        """Start the deletion of a run, unless one is running. Raises ProblemsError if it is refused."""
        with self._lock:
            deletion = self._deletions.get(run)
            if deletion is not None and deletion.problem is None and not deletion.is_done:
                return
        try:
            self._retention.refuse_unless_over(run)
        except ProblemsError as error:
            with self._lock:  # the page may already show the list
                self._deletions[run] = Deletion(problem=error.problems[0])
            raise
        with self._lock:
            self._deletions[run] = Deletion(archive=archive)
        self._start(f"delete {run}", lambda: self._delete(run, archive))

    def compact(self) -> None:
        """Start to compact the database, unless that is running."""
        with self._lock:
            if self._compacting is not None and self._compacting.problem is None:
                return
            self._compacting = Deletion()
        self._start("compact", self._compact)

    def set_rules(self, rules: Rules) -> None:
        """Set the rules. Raises ProblemsError."""
        self._retention.set_rules(rules)

    def deletions(self, lang: str) -> list[dict[str, Any]]:
        """Return the deletions that pages started since the server's start, newest last."""
        with self._lock:
            deletions = list(self._deletions.items())
        return [
            {
                "run": run,
                "phase": "failed"
                if deletion.problem
                else "done"
                if deletion.is_done
                else "archiving"
                if deletion.archive
                else "deleting",
                "rows": deletion.rows,
                "path": deletion.path,
                "problem": render_problem(lang, deletion.problem) if deletion.problem else None,
            }
            for run, deletion in deletions
        ]

    def size(self, run: str, lang: str) -> dict[str, Any]:
        """Return what a deletion of the run deletes, what stays and where, or why the deletion is refused."""
        try:
            with self._lock:
                when, size = self._sizes.get(run, (0.0, None))
            if size is None or not 0 <= self._clock() - when < SIZES_FRESH_S:
                size = self._retention.run_size(run)
                with self._lock:
                    self._sizes = {run: (self._clock(), size)}
            with self._database.read() as reader:
                places = folders_on_nodes(reader, run)
            return {
                "run": run,
                "name": size.name,
                "total": size_words(size.total),
                "kinds": kind_words(size.kinds, lang),
                "places": places,
                "folder": str(self._retention.default_archive()),
                "refused": render_problem(lang, size.kept_by) if size.kept_by else None,
            }
        except ProblemsError as error:
            return {"run": run, "refused": render_problem(lang, error.problems[0])}

    def part(self, lang: str) -> dict[str, Any]:
        """Return the whole view: sizes, growth, rules, runs and deletions. `look` is None until it is measured."""
        rules = asdict(self._retention.rules())
        deleted = [
            {"run": run.run, "name": run.name, "deleted": run.deleted, "by": run.by, "archive": run.archive}
            for run in self._retention.deleted()[:DELETED_SHOWN]
        ]
        with self._lock:
            self._refresh()
            measurement, compacting = self._measurement, self._compacting
        return {
            "rules": rules,
            "deleted": deleted,
            "compacting": _compacting(compacting, lang),
            "look": None if measurement is None else _measurement(measurement, lang),
        }

    def _refresh(self) -> None:
        is_fresh = self._measurement is not None and 0 <= self._clock() - self._measurement.when < SIZES_FRESH_S
        if not is_fresh and not self._is_measuring:
            self._is_measuring = True
            self._start("storage", self._measure)

    def _measure(self) -> None:
        try:
            new = _Measurement(when=self._clock(), storage=self._retention.storage(), runs=self._retention.run_sizes())
            with self._lock:
                self._measurement = new
        finally:
            with self._lock:
                self._is_measuring = False

    def _delete(self, run: str, archive: bool) -> None:
        problem = None
        try:
            folder = self._retention.default_archive() if archive else None
            deleted = self._retention.delete(
                run, by="page", archive_to=folder, report=lambda rows: self._set(run, rows=rows)
            )
            self._set(run, is_done=True, path=deleted.archive)
        except ProblemsError as error:
            problem = error.problems[0]
        except Exception:  # the page must show every error of the thread
            _log.exception("deleting %s", run)
            problem = Problem(code="internal_error")
        if problem is not None:
            self._set(run, problem=problem)
        self._expire_sizes()

    def _compact(self) -> None:
        problem = None
        try:
            self._retention.compact()
        except ProblemsError as error:
            problem = error.problems[0]
        except Exception:  # the page must show every error of the thread
            _log.exception("compacting")
            problem = Problem(code="internal_error")
        with self._lock:
            self._compacting = Deletion(problem=problem) if problem else None
        self._expire_sizes()

    def _expire_sizes(self) -> None:
        """Mark the sizes as outdated after a change, so that the next request measures again."""
        with self._lock:
            self._sizes = {}
            if self._measurement is not None:
                self._measurement = replace(self._measurement, when=0.0)

    def _set(self, run: str, **changes: Any) -> None:
        with self._lock:
            self._deletions[run] = replace(self._deletions[run], **changes)

    def _start(self, name: str, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name=name, daemon=True).start()


def _compacting(state: Deletion | None, lang: str) -> Mapping[str, Any] | None:
    return None if state is None else {"problem": render_problem(lang, state.problem) if state.problem else None}


def _measurement(measurement: _Measurement, lang: str) -> dict[str, Any]:
    storage = measurement.storage
    sizes = ("database", "reusable", "spare", "archives", "flight_records", "disk_free")
    growth = storage.growth_per_day
    return {
        "when": measurement.when,
        **{name: size_words(getattr(storage, name)) for name in sizes},
        "gives_back": storage.gives_back,
        "growth": None if growth is None else size_words(growth),
        "growth_hours": round(storage.growth_over_s / 3600, 1),
        "runs": [
            {
                "id": run.run,
                "name": run.name,
                "ended": run.ended,
                "total": size_words(run.total),
                "bytes": run.total,
                "curves": size_words(run.kinds["curves"]),
                "other_ranks": size_words(run.kinds["other_ranks"]),
                "logs": size_words(run.kinds["logs"]),
                "is_thinned": run.is_thinned,
                "can_delete": run.kept_by is None,
                "why": "" if run.kept_by is None else render_problem(lang, run.kept_by)["message"],
            }
            for run in measurement.runs
        ],
    }
