"""Files that the monitor's page downloads."""

from fastapi import APIRouter, HTTPException, Response

from app.failure_report import failure_report
from app.services import Services
from backend.job.problems import ProblemsError


def routes(services: Services) -> APIRouter:
    """Return the routes. GET /api/report/RUN: the zip of failure_report.py, 404 for an unknown run."""
    router = APIRouter()

    @router.get("/api/report/{run}")
    def report(run: str) -> Response:
        try:
            packed = failure_report(services, run)
        except ProblemsError as error:
            raise HTTPException(404, detail=[problem.code for problem in error.problems]) from error
        headers = {"content-disposition": f'attachment; filename="{run}.zip"'}
        return Response(packed, media_type="application/zip", headers=headers)

    return router
