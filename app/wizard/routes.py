"""The wizard's plain route, behind the gate like everything: the draft's files as one archive."""

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from app.services import Services
from app.wizard.reading import read
from app.wizard.review import archive
from backend.job.problems import ProblemsError


def routes(services: Services) -> APIRouter:
    """GET /api/archive: a zip of what the draft renders to, 409 while it cannot be rendered."""
    router = APIRouter()

    @router.get("/api/archive")
    def files() -> Response:
        job = read(services.draft.job_mapping(), services.home).job
        if job is None:
            raise HTTPException(409)
        try:
            packed = archive(job)
        except ProblemsError as error:
            raise HTTPException(409, detail=[problem.code for problem in error.problems]) from error
        headers = {"content-disposition": f'attachment; filename="{job.name}.zip"'}
        return Response(packed, media_type="application/zip", headers=headers)

    return router
