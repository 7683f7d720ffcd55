"""Files that the monitor's page downloads."""

from itertools import chain
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.responses import StreamingResponse

from app.failure_report import failure_report
from app.metrics_csv import csv_lines
from app.services import Services
from backend.job.problems import ProblemsError


def routes(services: Services) -> APIRouter:
    """Return the routes.

    GET /api/report/RUN: the zip of failure_report.py. GET /api/metrics/RUN.csv?name=N: the numbers of a run, all or
    some. 404 for an unknown run.
    """
    router = APIRouter()

    @router.get("/api/report/{run}")
    def report(run: str) -> Response:
        try:
            packed = failure_report(services, run)
        except ProblemsError as error:
            raise HTTPException(404, detail=[problem.code for problem in error.problems]) from error
        headers = {"content-disposition": f'attachment; filename="{run}.zip"'}
        return Response(packed, media_type="application/zip", headers=headers)

    @router.get("/api/metrics/{run}.csv")
    def metrics(run: str, name: Annotated[list[str] | None, Query()] = None) -> StreamingResponse:
        parts = csv_lines(services.database, run, name or ())
        try:
            first = next(parts)
        except ProblemsError as error:
            raise HTTPException(404, detail=[problem.code for problem in error.problems]) from error
        headers = {"content-disposition": f'attachment; filename="{run}.csv"'}
        return StreamingResponse(chain([first], parts), media_type="text/csv; charset=utf-8", headers=headers)

    return router
