"""Answers a poll with one JSON string of the data that the tab needs, or None if it is up to date.

The server stores nothing about a tab. A request contains the versions of the tab's sections, and the ends of its curves
and its log. So a tab that paused, or a server that restarted, needs no repair.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from app.monitor import events, log, metrics, run, runs, side_by_side, utilization
from app.monitor.downsample import OVERLAY_LIMIT
from app.monitor.json_parts import Answer, Section, join, to_json
from app.monitor.poll_request import LogRequest, PollRequest
from app.monitor.shared_answers import Shared
from app.monitor.storage import StorageView
from app.monitor.watch import RUNS_KEPT, SNAPSHOT_S, RunCache
from app.text import hangs, render_problem, stragglers
from app.text.alerts import outside_words
from app.text.unmonitored import unseen
from backend.job.problems import Problem, ProblemsError
from backend.runs.api import DERIVED, WATCHED, Metric
from backend.runs.database import Database
from backend.runs.records import RunSnapshot

Comparison = Callable[[str], Mapping[str, Any] | None]
"""Run -> its measured figures beside the predicted ones (compare.py)."""


Offer = Callable[[RunSnapshot, str], Mapping[str, Any] | Sequence[Mapping[str, Any]] | None]
"""(run, language) -> actions that the run offers, or their progress (exports.py, resuming.py, cause_fixes.py)."""


class PollResponder:
    """Answers polls in one language."""

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
        self._sections: Shared[dict[str, Section]] = Shared(clock, fresh_s=SNAPSHOT_S, size=RUNS_KEPT)
        self._differences: Shared[Section] = Shared(clock, fresh_s=math.inf, size=RUNS_KEPT)
        self._metric_names: Shared[Section] = Shared(clock, fresh_s=math.inf, size=RUNS_KEPT)
        self._logs: Shared[dict[str, Any]] = Shared(clock, fresh_s=SNAPSHOT_S, size=RUNS_KEPT)
        self._utilization = utilization.UtilizationAnswers(database, clock)

    def answer(self, request: PollRequest, now: float, refusal: Problem | None = None) -> str | None:
        """Return the JSON string for the browser. `refusal`: why the requested action was refused."""
        response = Answer(shown=request.versions)
        try:
            if request.compare:
                self._side_by_side(response, request)
            elif request.run:
                self._run(response, request)
            else:
                self._list(response, request)
        except ProblemsError as error:
            response.add_news({"error": Section.from_value(self._words(error.problems[0]))})
        self._deletion_size(response, request.erase)
        self._trouble(response)
        if refusal is not None:
            response.add("refused", to_json(self._words(refusal)))
        return response.to_json(run=request.run, now=round(now, 1))

    def _list(self, response: Answer, request: PollRequest) -> None:
        rows = self._run_cache.runs()
        names, values = self._run_cache.columns(request.metric)
        make = lambda: {  # noqa: E731
            "rows": Section.from_value(runs.rows(rows, values, self._lang)),
            "metric_names": Section.from_value(metrics.titles(names, self._lang)),
        }
        response.add_news(self._sections.get(("", request.metric), make, version=rows))
        if self._storage is not None:
            response.add_news({"deletions": Section.from_value(self._storage.deletions(self._lang))})
            if request.storage:
                response.add_news({"storage": Section.from_value(self._storage.part(self._lang))})

    def _side_by_side(self, response: Answer, request: PollRequest) -> None:
        cache, runs = self._run_cache, tuple(request.compare)
        response.add_news({"heads": Section.from_value(side_by_side.heads(cache, runs, self._lang))})
        fields = lambda: Section.from_value(side_by_side.differences(self._database, runs, self._lang))  # noqa: E731
        response.add_news({"fields": self._differences.get(runs, fields)})
        names = dict.fromkeys(name for run_id in runs for name in cache.metrics_of(run_id))
        response.add_news({"names": Section.from_value(metrics.names(names, self._lang))})
        curves, logged, details = {}, {}, {}
        for run_id, marks in request.compare.items():
            if points := cache.curves(run_id, marks.generation, marks.seq, OVERLAY_LIMIT):
                curves[run_id] = points
            if values := cache.metric_values(run_id, marks.metrics, OVERLAY_LIMIT):
                logged[run_id] = join(values)
            if request.detail is not None:
                details[run_id] = cache.detail(run_id, *request.detail, tuple(marks.metrics), OVERLAY_LIMIT)
        for name, part in (("curves", curves), ("logged", logged), ("details", details)):
            if part:
                response.add(name, join(part))

    def _deletion_size(self, response: Answer, erase: str | None) -> None:
        """Add the size of the run for which the deletion dialog is open."""
        if erase is not None and self._storage is not None:
            response.add_news({"erase": Section.from_value(self._storage.size(erase, self._lang))})

    def _run(self, response: Answer, request: PollRequest) -> None:
        snapshot = self._run_cache.run(request.run)
        response.add_news(self._sections.get(request.run, lambda: self._sections_of(snapshot), version=snapshot))
        if points := self._run_cache.curves(request.run, request.generation, request.seq):
            response.add("points", points)
        known = self._run_cache.metrics_of(request.run)
        response.add_news({"metrics": self._names(request.run, known)})
        if values := self._run_cache.metric_values(request.run, request.metrics):
            response.add("values", join(values))
        step = snapshot.step or 0
        if request.axis is not None and request.axis != step:
            response.add("axis", self._run_cache.axis(request.run, step))
        if request.step is not None:
            response.add("place", to_json(log.place(self._database, request.run, request.step)))
        if request.detail is not None:
            response.add("detail", self._run_cache.detail(request.run, *request.detail, tuple(request.metrics)))
        ranks = [node.rank for node in snapshot.nodes]
        if stretches := self._utilization.part(request.run, ranks, request.utilization):
            response.add("usage", stretches)
        self._log(response, request, snapshot.state.is_final)

    def _sections_of(self, snapshot: RunSnapshot) -> dict[str, Section]:
        sections = {
            "head": {**run.head(snapshot, self._lang), **self._actions(snapshot)},
            "progress": run.progress(snapshot, self._lang),
            # A run that the user's own script started has no prediction, and a chat trains nothing.
            "compare": None if snapshot.engine in (WATCHED, *DERIVED) else self._comparison(snapshot),
            "standstill": hangs.values(snapshot),
            "slowdown": stragglers.texts(snapshot, self._lang),
            "unseen": unseen(snapshot, self._lang),
            "nodes": run.nodes(snapshot),
            "events": events.events(snapshot, self._lang),
            "rules": self._rules(snapshot.id),
        }
        return {name: Section.from_value(value) for name, value in sections.items()}

    def _rules(self, run_id: str) -> list[dict[str, Any]]:
        """Return the rules of alerts that hold for a run."""
        with self._database.read() as reader:
            return [
                {"id": stored.id, "all_runs": stored.run is None, **asdict(stored.rule)}
                for stored in reader.alert_rules(run_id)
            ]

    def _names(self, run_id: str, known: Mapping[str, Metric]) -> Section:
        make = lambda: Section.from_value(metrics.names(known, self._lang))  # noqa: E731
        return self._metric_names.get((run_id, tuple(known)), make)

    def _comparison(self, snapshot: RunSnapshot) -> dict[str, Any] | None:
        comparison = self._compare(snapshot.id)
        return None if comparison is None else {**comparison, "outside": outside_words(snapshot, self._lang)}

    def _actions(self, snapshot: RunSnapshot) -> dict[str, Any]:
        if snapshot.engine in (WATCHED, *DERIVED):
            return dict.fromkeys(self._offers)
        return {name: offer(snapshot, self._lang) for name, offer in self._offers.items()}

    def _log(self, response: Answer, request: PollRequest, is_final: bool) -> None:
        """Add the log if it has new lines or another list of files."""
        log_request: LogRequest = request.log
        key = (request.run, log_request, is_final)
        answer = self._logs.get(key, lambda: log.part(self._database, request.run, log_request, is_final))
        files = Section.from_value([answer["attempt"], answer["node"], answer["file"], answer["files"]])
        if request.versions.get("log") != files.version:
            response.add_news({"log": Section(text=to_json(answer), version=files.version)})
        elif answer["lines"] or "before" in answer:
            response.add("log", to_json({name: value for name, value in answer.items() if name != "files"}))

    def _trouble(self, response: Answer) -> None:
        """Add why new data cannot be stored now, or that it can be stored again."""
        trouble = self._database.trouble
        if trouble is not None or "trouble" in response.shown:
            response.add_news({"trouble": Section.from_value(trouble and self._words(trouble))})

    def _words(self, problem: Problem) -> dict[str, str]:
        return render_problem(self._lang, problem)
