"""Answers a tick: ONE JSON string with what the tab lacks, or None when it lacks nothing.

The server keeps nothing about a tab. A question says which sections it shows in which version, up to which point its
curves go and how far its log goes; so a tab that slept, or a server that was restarted, needs no repair.
"""

from collections.abc import Callable, Mapping
from typing import Any

from app.monitor import events, log, run, runs, utilization
from app.monitor.json_parts import Answer, Section, to_json
from app.monitor.poll_request import LogQuestion, Question
from app.monitor.shared_answers import Shared
from app.monitor.storage import StorageView
from app.monitor.watch import LOOK_S, RUNS_KEPT, RunCache
from app.text import render_problem
from app.text.hangs import standstill
from app.text.stragglers import slowdown
from app.text.unmonitored import unseen
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import WATCHED
from backend.runs.database import Database
from backend.runs.records import RunSnapshot

Comparison = Callable[[str], Mapping[str, Any] | None]
"""Run -> its measured figures beside the predicted ones (compare.py)."""


Offer = Callable[[RunSnapshot, str], Mapping[str, Any] | None]
"""(run, language) -> what can be done with it, or how that goes (exports.py, resuming.py)."""


class Bundler:
    """Makes the answers of one language."""

    def __init__(
        self,
        run_cache: RunCache,
        database: Database,
        lang: str,
        clock: Callable[[], float],
        compare: Comparison = lambda run: None,
        offers: Mapping[str, Offer] | None = None,
        storage: StorageView | None = None,
    ) -> None:
        self._storage = storage
        self._compare = compare
        self._offers = offers or {}
        self._run_cache = run_cache
        self._database = database
        self._lang = lang
        self._sections: Shared[dict[str, Section]] = Shared(clock, fresh_s=LOOK_S, kept=RUNS_KEPT)
        self._logs: Shared[dict[str, Any]] = Shared(clock, fresh_s=LOOK_S, kept=RUNS_KEPT)
        self._usage = utilization.Usage(database, clock)

    def answer(self, question: Question, now: float, refused: Problem | None = None) -> str | None:
        """The JSON string for the browser. `refused`: why what it just asked for was not done."""
        lacks = Answer(seen=question.seen)
        try:
            if question.run:
                self._run(lacks, question)
            else:
                self._list(lacks, question)
        except ProblemsError as error:
            lacks.add_news({"error": Section.of(self._words(error.problems[0]))})
        self._size(lacks, question.erase)
        self._trouble(lacks)
        if refused is not None:
            lacks.add("refused", to_json(self._words(refused)))
        return lacks.to_json(run=question.run, now=round(now, 1))

    def _list(self, lacks: Answer, question: Question) -> None:
        rows = self._run_cache.runs()
        make = lambda: {"rows": Section.of(runs.rows(rows, self._lang))}  # noqa: E731
        lacks.add_news(self._sections.get("", make, version=rows))
        if self._storage is not None:
            lacks.add_news({"deletions": Section.of(self._storage.deletions(self._lang))})
            if question.storage:
                lacks.add_news({"storage": Section.of(self._storage.part(self._lang))})

    def _size(self, lacks: Answer, erase: str | None) -> None:
        """The size of the run for which the deletion dialog is open."""
        if erase is not None and self._storage is not None:
            lacks.add_news({"erase": Section.of(self._storage.size(erase, self._lang))})

    def _run(self, lacks: Answer, question: Question) -> None:
        snapshot = self._run_cache.run(question.run)
        lacks.add_news(self._sections.get(question.run, lambda: self._sections_of(snapshot), version=snapshot))
        if points := self._run_cache.curves(question.run, question.generation, question.seq):
            lacks.add("points", points)
        if question.detail is not None:
            lacks.add("detail", self._run_cache.detail(question.run, *question.detail))
        if busy := self._usage.part(question.run, [node.rank for node in snapshot.nodes], question.usage):
            lacks.add("usage", busy)
        self._log(lacks, question, snapshot.state.is_final)

    def _sections_of(self, snapshot: RunSnapshot) -> dict[str, Section]:
        sections = {
            "head": {**run.head(snapshot, self._lang), **self._offered(snapshot)},
            "progress": run.progress(snapshot, self._lang),
            # What it could be compared by is not known of a run that somebody else started.
            "compare": None if snapshot.engine == WATCHED else self._compare(snapshot.id),
            "standstill": standstill(snapshot),
            "slowdown": slowdown(snapshot, self._lang),
            "unseen": unseen(snapshot, self._lang),
            "nodes": run.nodes(snapshot),
            "events": events.events(snapshot, self._lang),
        }
        return {name: Section.of(value) for name, value in sections.items()}

    def _offered(self, snapshot: RunSnapshot) -> dict[str, Any]:
        if snapshot.engine == WATCHED:
            return dict.fromkeys(self._offers)
        return {name: offer(snapshot, self._lang) for name, offer in self._offers.items()}

    def _log(self, lacks: Answer, question: Question, is_final: bool) -> None:
        """The log where it has news: lines, or another list of files."""
        asked: LogQuestion = question.log
        key = (question.run, asked, is_final)
        shown = self._logs.get(key, lambda: log.part(self._database, question.run, asked, is_final))
        files = Section.of([shown["attempt"], shown["node"], shown["file"], shown["files"]])
        if question.seen.get("log") != files.version:
            lacks.add_news({"log": Section(text=to_json(shown), version=files.version)})
        elif shown["lines"] or "before" in shown:
            lacks.add("log", to_json({name: value for name, value in shown.items() if name != "files"}))

    def _trouble(self, lacks: Answer) -> None:
        """Why new data cannot be stored now, or that it can be stored again."""
        trouble = self._database.trouble
        if trouble is not None or "trouble" in lacks.seen:
            lacks.add_news({"trouble": Section.of(trouble and self._words(trouble))})

    def _words(self, problem: Problem) -> dict[str, str]:
        return render_problem(self._lang, problem)
