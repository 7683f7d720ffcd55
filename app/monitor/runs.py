"""The list of runs for the browser."""

from collections.abc import Mapping
from typing import Any

from app.monitor.metric_columns import Values
from app.text import render_problem
from backend.runs.api import DERIVED
from backend.runs.records import RunLabels, RunSummary


def labels(labels: RunLabels) -> dict[str, Any]:
    """Return the tags and the note of a run, and whether the list hides it."""
    return {"tags": list(labels.tags), "note": labels.note, "hidden": labels.is_hidden}


def rows(runs: list[RunSummary], values: Mapping[str, Values], lang: str) -> list[dict[str, Any]]:
    """Return one row per run, newest first. `why` says why it waits or failed. `values`: MetricColumns.values."""
    return [
        {
            "id": run.id,
            "name": run.name,
            "state": run.state.value,
            "engine": run.engine,
            "nodes": run.nodes,
            "created": run.created,
            "step": run.step,
            "total": run.total_steps,
            "eta_s": None if run.eta_s is None or run.stands_since else round(run.eta_s, 1),
            "metric": values[run.id]._asdict() if run.id in values else None,
            "stands_since": run.stands_since,
            "queue_place": run.queue_place,
            "can_delete": run.state.is_final,
            "can_resume": run.state.can_resume and run.engine not in DERIVED,
            "has_begun": run.has_begun,
            # The run would fail again in the queue. The user must first accept its warnings on its page.
            "needs_word": run.why is not None and run.why.code == "warnings_not_accepted",
            "labels": labels(run.labels),
            "why": render_problem(lang, run.why)["message"] if run.why else "",
        }
        for run in runs
        if not (run.engine in DERIVED and run.state.is_final)  # the page of the trained run shows it
    ]
