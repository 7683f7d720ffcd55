"""Several runs side by side: what each one is, and the keys in which their jobs differ."""

from collections.abc import Sequence
from typing import Any

from app.monitor.runs import labels
from app.monitor.watch import RunCache
from app.text import render_problem
from app.wizard.job_values import label, leaves, text
from backend.job.job import Job
from backend.job.problems import ProblemsError
from backend.runs.database import Database


def heads(cache: RunCache, runs: Sequence[str], lang: str) -> list[dict[str, Any]]:
    """Return what the view says of each run; {id, why} for a run that cannot be shown."""
    return [_head(cache, run, lang) for run in runs]


def _head(cache: RunCache, run_id: str, lang: str) -> dict[str, Any]:
    try:
        run = cache.run(run_id)
    except ProblemsError as error:
        return {"id": run_id, "why": render_problem(lang, error.problems[0])["message"]}
    return {
        "id": run.id,
        "name": run.name,
        "state": run.state.value,
        "engine": run.engine,
        "nodes": len(run.nodes),
        "step": run.step,
        "total": run.total_steps,
        "loss": run.loss,
        "created": run.created,
        "started": run.started,
        "labels": labels(run.labels),
    }


def differences(database: Database, runs: Sequence[str], lang: str) -> list[dict[str, Any]]:
    """Return {path, label, values} of each key of the job file whose value is not the same in all runs.

    `values` has one text for each run, in order: empty for a key that the job does not have, null for a run whose job
    cannot be read.
    """
    jobs = [_job(database, run) for run in runs]
    values = [None if job is None else leaves(job) for job in jobs]
    paths = dict.fromkeys(path for job in values if job is not None for path in job)
    rows = []
    for path in paths:
        texts = [None if job is None else text(job.get(path)) for job in values]
        if len({shown for shown in texts if shown is not None}) > 1:
            rows.append({"path": path, "label": label(path, lang), "values": texts})
    return rows


def _job(database: Database, run: str) -> Job | None:
    try:
        return database.job(run)
    except ProblemsError:
        return None
