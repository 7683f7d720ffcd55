"""Answers a tick: ONE JSON string with what the tab lacks, or None when it lacks nothing.

The server keeps nothing about a tab. A question says which sections it shows in which version, up to which point its
curves go and how far its log goes; so a tab that slept, or a server that was restarted, needs no repair.
"""

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from app.i18n import render_problem
from app.monitor import events, log, run, runs, usage
from app.monitor.question import Question
from app.monitor.watch import Watch
from app.slowdown_words import slowdown
from app.standstill_words import standstill
from backend.job.problems import Problem, ProblemsError
from backend.jobs.progress import WATCHED
from backend.jobs.records import RunSnapshot
from backend.jobs.store import Store

Comparison = Callable[[str], Mapping[str, Any] | None]
"""Run -> its measured figures beside the predicted ones (compare.py)."""


Offer = Callable[[RunSnapshot, str], Mapping[str, Any] | None]
"""(run, language) -> what can be done with it, or how that goes (exports.py, resuming.py)."""


class Bundler:
    """Makes the answers of one language."""

    def __init__(
        self,
        watch: Watch,
        store: Store,
        lang: str,
        compare: Comparison = lambda run: None,
        offers: Mapping[str, Offer] | None = None,
    ) -> None:
        self._compare = compare
        self._offers = offers or {}
        self._watch = watch
        self._store = store
        self._lang = lang

    def answer(self, question: Question, now: float, refused: Problem | None = None) -> str | None:
        """The JSON string for the browser. `refused`: why what it just asked for was not done."""
        try:
            lacks = self._run(question, now) if question.run else self._list(question)
        except ProblemsError as error:
            lacks = self._news(question, {"error": self._words(error.problems[0])})
        lacks = self._with_trouble(question, lacks)
        if refused is not None:
            lacks["refused"] = self._words(refused)
        return to_json({"run": question.run, "now": round(now, 1), **lacks}) if lacks else None

    def _list(self, question: Question) -> dict[str, Any]:
        return self._news(question, {"rows": runs.rows(self._watch.runs(), self._lang)})

    def _run(self, question: Question, now: float) -> dict[str, Any]:
        snapshot = self._watch.run(question.run)
        sections = {
            "head": {**run.head(snapshot, self._lang), **self._offered(snapshot)},
            "progress": run.progress(snapshot, self._lang),
            # What it could be compared by is not known of a run that somebody else started.
            "compare": None if snapshot.engine == WATCHED else self._compare(snapshot.id),
            "standstill": standstill(snapshot),
            "slowdown": slowdown(snapshot, self._lang),
            "nodes": run.nodes(snapshot, now),
            "events": events.events(snapshot, self._lang),
        }
        lacks = self._news(question, sections)
        points = self._watch.curves(question.run, question.generation, question.seq)
        if points["series"] or "from" not in points:
            lacks["points"] = points
        if busy := usage.part(self._store, question.run, [node.rank for node in snapshot.nodes], question.usage):
            lacks["usage"] = busy
        shown = log.part(self._store, question.run, question.log, snapshot.state.is_final)
        return {**lacks, **self._log(question, shown, lacks.get("versions", {}))}

    def _offered(self, snapshot: RunSnapshot) -> dict[str, Any]:
        if snapshot.engine == WATCHED:
            return dict.fromkeys(self._offers)
        return {name: offer(snapshot, self._lang) for name, offer in self._offers.items()}

    def _log(self, question: Question, shown: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, Any]:
        """The log where it has news: lines, or another list of files."""
        version = _version([shown["attempt"], shown["node"], shown["file"], shown["files"]])
        if question.seen.get("log") != version:
            return {"log": shown, "versions": {**versions, "log": version}}
        if not shown["lines"] and "before" not in shown:
            return {}
        return {"log": {name: value for name, value in shown.items() if name != "files"}}

    def _with_trouble(self, question: Question, lacks: Mapping[str, Any]) -> dict[str, Any]:
        """And why nothing new is kept at present, or that it is kept again."""
        trouble = self._store.trouble
        if trouble is None and "trouble" not in question.seen:
            return dict(lacks)
        told = self._news(question, {"trouble": trouble and self._words(trouble)})
        versions = {**lacks.get("versions", {}), **told.get("versions", {})}
        return {**lacks, **told, "versions": versions} if told else dict(lacks)

    def _news(self, question: Question, sections: Mapping[str, Any]) -> dict[str, Any]:
        """Those sections that the tab shows in another version, and their versions."""
        versions = {name: _version(section) for name, section in sections.items()}
        lacks = {name: sections[name] for name, version in versions.items() if question.seen.get(name) != version}
        return {**lacks, "versions": {name: versions[name] for name in lacks}} if lacks else {}

    def _words(self, problem: Problem) -> dict[str, str]:
        return render_problem(self._lang, problem)


def to_json(value: object) -> str:
    """Compact JSON that every browser reads: NaN and infinity, which JSON has no words for, are null."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=False)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value


def _version(section: object) -> str:
    return f"{zlib.crc32(to_json(section).encode()):08x}"
