"""The storage view for the browser: sizes and deletions. Slow work runs in its own thread."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from app.services import Services
from app.text import render_problem
from app.text.storage import kind_words, places_on_nodes, size_words
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import RunSize, Storage
from backend.runs.database import Database
from backend.runs.retention import Retention, Rules

_log = logging.getLogger(__name__)

LOOK_S = 60.0
"""Sizes are at most so old while they are shown."""
DELETED_SHOWN = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Deletion:
    """The state of a deletion that a page started, or of the compaction of the database."""

    archive: bool = False
    rows: int = 0
    """Written into the archive."""
    path: str | None = None
    is_done: bool = False
    problem: Problem | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    when: float
    storage: Storage
    runs: list[RunSize]


class StorageView:
    """Safe for many threads. The list of started deletions is lost when the server ends; the store's records stay."""

    def __init__(self, retention: Retention, database: Database, clock: Callable[[], float]) -> None:
        self._retention = retention
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._deletions: dict[str, Deletion] = {}
        self._compacting: Deletion | None = None
        self._look: _Look | None = None
        self._is_looking = False
        self._sizes: dict[str, tuple[float, RunSize]] = {}

    def delete(self, run: str, *, archive: bool) -> None:
        """Start the deletion of a run, unless one is running. ProblemsError if it is refused."""
        with self._lock:
            known = self._deletions.get(run)
            if known is not None and known.problem is None and not known.is_done:
                return
        try:
            self._retention.refuse_unless_over(run)
        except ProblemsError as error:
            with self._lock:  # the page may show the list by now
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
        """Set the rules. ProblemsError."""
        self._retention.set_rules(rules)

    def deletions(self, lang: str) -> list[dict[str, Any]]:
        """The deletions that pages asked for since the server's start, newest last."""
        with self._lock:
            known = list(self._deletions.items())
        return [
            {
                "run": run,
                "phase": "failed"
                if one.problem
                else "done"
                if one.is_done
                else "archiving"
                if one.archive
                else "deleting",
                "rows": one.rows,
                "path": one.path,
                "problem": render_problem(lang, one.problem) if one.problem else None,
            }
            for run, one in known
        ]

    def size(self, run: str, lang: str) -> dict[str, Any]:
        """What a deletion of the run deletes, what stays and where; or why the deletion is refused."""
        try:
            with self._lock:
                when, found = self._sizes.get(run, (0.0, None))
            if found is None or not 0 <= self._clock() - when < LOOK_S:
                found = self._retention.run_size(run)
                with self._lock:
                    self._sizes = {run: (self._clock(), found)}
            with self._database.read() as reader:
                places = places_on_nodes(reader, run)
            return {
                "run": run,
                "name": found.name,
                "total": size_words(found.total),
                "kinds": kind_words(found.kinds, lang),
                "places": places,
                "folder": str(self._retention.default_archive()),
                "refused": render_problem(lang, found.kept_by) if found.kept_by else None,
            }
        except ProblemsError as error:
            return {"run": run, "refused": render_problem(lang, error.problems[0])}

    def part(self, lang: str) -> dict[str, Any]:
        """The whole view: sizes, growth, rules, runs and what was deleted. `look` is None until it is measured."""
        rules = asdict(self._retention.rules())
        deleted = [
            {"run": one.run, "name": one.name, "deleted": one.deleted, "by": one.by, "archive": one.archive}
            for one in self._retention.deleted()[:DELETED_SHOWN]
        ]
        with self._lock:
            self._look_again()
            look, compacting = self._look, self._compacting
        return {
            "rules": rules,
            "deleted": deleted,
            "compacting": _compacting(compacting, lang),
            "look": None if look is None else _look(look, lang),
        }

    def _look_again(self) -> None:
        is_fresh = self._look is not None and 0 <= self._clock() - self._look.when < LOOK_S
        if not is_fresh and not self._is_looking:
            self._is_looking = True
            self._start("storage", self._measure)

    def _measure(self) -> None:
        try:
            look = _Look(when=self._clock(), storage=self._retention.storage(), runs=self._retention.run_sizes())
            with self._lock:
                self._look = look
        finally:
            with self._lock:
                self._is_looking = False

    def _delete(self, run: str, archive: bool) -> None:
        problem = None
        try:
            folder = self._retention.default_archive() if archive else None
            made = self._retention.delete(
                run, by="page", archive_to=folder, report=lambda rows: self._set(run, rows=rows)
            )
            self._set(run, is_done=True, path=made.archive)
        except ProblemsError as error:
            problem = error.problems[0]
        except Exception:  # the edge of a thread: the page must hear of it
            _log.exception("deleting %s", run)
            problem = Problem(code="internal_error")
        if problem is not None:
            self._set(run, problem=problem)
        self._forget()

    def _compact(self) -> None:
        problem = None
        try:
            self._retention.compact()
        except ProblemsError as error:
            problem = error.problems[0]
        except Exception:  # the edge of a thread: the page must hear of it
            _log.exception("compacting")
            problem = Problem(code="internal_error")
        with self._lock:
            self._compacting = Deletion(problem=problem) if problem else None
        self._forget()

    def _forget(self) -> None:
        """The disk has changed: measure again at the next request."""
        with self._lock:
            self._sizes = {}
            if self._look is not None:
                self._look = replace(self._look, when=0.0)

    def _set(self, run: str, **changes: Any) -> None:
        with self._lock:
            self._deletions[run] = replace(self._deletions[run], **changes)

    def _start(self, name: str, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name=name, daemon=True).start()


def _compacting(one: Deletion | None, lang: str) -> Mapping[str, Any] | None:
    return None if one is None else {"problem": render_problem(lang, one.problem) if one.problem else None}


def _look(look: _Look, lang: str) -> dict[str, Any]:
    found = look.storage
    sizes = ("database", "reusable", "spare", "archives", "flight_records", "disk_free")
    growth = found.growth_per_day
    return {
        "when": look.when,
        **{name: size_words(getattr(found, name)) for name in sizes},
        "gives_back": found.gives_back,
        "growth": None if growth is None else size_words(growth),
        "growth_hours": round(found.growth_over_s / 3600, 1),
        "runs": [
            {
                "id": one.run,
                "name": one.name,
                "ended": one.ended,
                "total": size_words(one.total),
                "bytes": one.total,
                "curves": size_words(one.kinds["curves"]),
                "other_ranks": size_words(one.kinds["other_ranks"]),
                "logs": size_words(one.kinds["logs"]),
                "is_thinned": one.is_thinned,
                "can_delete": one.kept_by is None,
                "why": "" if one.kept_by is None else render_problem(lang, one.kept_by)["message"],
            }
            for one in look.runs
        ],
    }


@lru_cache(maxsize=8)
def _view(retention: Retention, database: Database, clock: Callable[[], float]) -> StorageView:
    return StorageView(retention, database, clock)


def storage_of(services: Services) -> StorageView:
    """The one instance of a server, shared by all pages."""
    return _view(services.retention, services.database, services.clock)
