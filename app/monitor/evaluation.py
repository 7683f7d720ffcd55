"""Evaluations of the models of a run, for the browser: the newest one, and its rows as CSV."""

import csv
import io
import math
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, HTTPException, Response

from app.services import Services
from app.text import render_problem, without_commands
from backend.job.problems import ProblemsError
from backend.runs.api import WATCHED, Evaluation, EvaluationResult
from backend.runs.records import RunSnapshot
from backend.runs.redact import redact
from backend.runs.states import RunState

MOST_NATS = 50.0
"""The perplexity of a larger loss says nothing."""
METRICS = ("bleu-4", "rouge-1", "rouge-2", "rouge-l")
"""LLaMA-Factory's metrics of similarity, in percent (0.9.5 src/llamafactory/train/sft/metric.py)."""


class EvaluationView:
    """What the page shows of the newest evaluation of a run."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def view(self, run: RunSnapshot, lang: str) -> Mapping[str, Any] | None:
        """Return the offer, the progress or the result. None for a run that has not ended, or has no SFT model."""
        newest = self._services.controller.evaluations.newest(run.id)
        if newest is None and not run.state.is_final:
            return None
        with self._services.database.read() as reader:
            job = reader.job(run.id)
            loss, *_ = reader.metric_summaries("eval_loss").get(run.id, (None, None, None))
        is_ours = job.traits.environment == "llamafactory" and job.cluster.scheduler is None
        if run.engine == WATCHED or not is_ours or job.training.stage != "sft":
            return None
        data = "held_out" if job.eval_size else "eval_dataset" if job.eval_dataset else "trained"
        shown = {"phase": "offer", "data": data} if newest is None else _shown(newest, lang)
        return {**shown, "loss": loss, "perplexity": None if loss is None or loss > MOST_NATS else math.exp(loss)}


def _shown(evaluation: Evaluation, lang: str) -> dict[str, Any]:
    is_over = evaluation.state.is_final and (evaluation.has_result or evaluation.state is not RunState.FINISHED)
    return {
        "phase": "ended" if is_over else "waiting" if evaluation.state is RunState.QUEUED else "working",
        "run": evaluation.run,
        "models": list(evaluation.models),
        "data": evaluation.data,
        "state": evaluation.state.value,
        "node": evaluation.node,
        "line": without_commands(redact(evaluation.line)),
        "why": render_problem(lang, evaluation.why) if evaluation.why else None,
        "note": render_problem(lang, evaluation.note) if evaluation.note else None,
        "left": evaluation.left,
        "has_result": evaluation.has_result,
    }


def evaluation_routes(services: Services) -> APIRouter:
    """Return the routes. 404 without a result.

    GET /api/evaluation/RUN.csv: the rows of an evaluation. GET /api/evaluation/RUN: {rows, metrics, missing}.
    """
    router = APIRouter()

    def result_of(run: str) -> EvaluationResult:
        try:
            return services.controller.evaluations.result(run)
        except ProblemsError as error:
            raise HTTPException(404, detail=[problem.code for problem in error.problems]) from error

    @router.get("/api/evaluation/{run}.csv")
    def rows(run: str) -> Response:
        headers = {"content-disposition": f'attachment; filename="{run}.csv"'}
        return Response(to_csv(result_of(run)), media_type="text/csv; charset=utf-8", headers=headers)

    @router.get("/api/evaluation/{run}")
    def result(run: str) -> dict[str, Any]:
        evaluated = result_of(run)
        metrics = {
            name: {key: values[key] for key in METRICS if key in values}
            for name, values in evaluated["metrics"].items()
        }
        return {"rows": evaluated["rows"], "metrics": metrics, "missing": evaluated["missing"]}

    return router


def to_csv(result: EvaluationResult) -> str:
    """Return the rows of an evaluation as CSV: prompt, reference, and one column for each model."""
    names = list(result["metrics"])
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["prompt", "reference", *names])
    for row in result["rows"]:
        cells = [row["prompt"], row["reference"], *(row["answers"].get(name, "") for name in names)]
        writer.writerow([_safe(cell) for cell in cells])
    return text.getvalue()


def _safe(cell: str) -> str:
    """Return the text of a cell so that no spreadsheet reads it as a formula."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
