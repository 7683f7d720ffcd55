"""The wizard's plain routes, behind the gate like everything: files of the draft, strategies, why not a plan, help."""

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from app.i18n import LANGUAGES
from app.own_presets import read_preset
from app.services import Services
from app.wizard.difference import difference_of
from app.wizard.help import help_of
from app.wizard.plans import why_not_of as answer
from app.wizard.reading import read
from app.wizard.review import archive
from app.wizard.secrets import secret_routes
from app.wizard.strategies import strategies_of
from backend.job.problems import ProblemsError


def routes(services: Services) -> APIRouter:
    """GET /api/archive: a zip of what the draft renders to, 409 while it cannot be rendered.

    GET /api/presets/NAME: the job file of one of the user's presets, 404 where there is none.

    GET /api/difference?base=RUN|recommended&lang=en: what the draft changes against it (difference.py).

    GET /api/strategies?lang=en: {rows} or {why}, the best plan of each strategy for the draft.

    GET /api/why-not?sizes=TP=8 PP=3&lang=en: {words}, why the best plan of the draft does not have these sizes.

    /api/secrets and /api/passphrases: secrets.py.

    GET /api/help?path=parallel.tensor&lang=en: a field's help, with what other values do to the draft; 404 for others.
    """
    router = APIRouter()
    router.include_router(secret_routes(services.audit))

    @router.get("/api/archive")
    def files() -> Response:
        job = read(services.draft.job_mapping(), services.home).job
        if job is None:
            raise HTTPException(409)
        try:
            source = services.draft.source
            packed = archive(job, source.folder if source else None)
        except ProblemsError as error:
            raise HTTPException(409, detail=[problem.code for problem in error.problems]) from error
        headers = {"content-disposition": f'attachment; filename="{job.name}.zip"'}
        return Response(packed, media_type="application/zip", headers=headers)

    @router.get("/api/presets/{name}")
    def preset(name: str) -> Response:
        try:
            text = read_preset(services.home, name)
        except ProblemsError as error:
            raise HTTPException(404) from error
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(name)}.yaml"}
        return Response(text, media_type="application/yaml", headers=headers)

    @router.get("/api/why-not")
    def why_not(sizes: str, lang: str = "en") -> dict[str, str]:
        reading = read(services.draft.job_mapping(), services.home)
        return {"words": answer(reading, sizes, lang if lang in LANGUAGES else "en")}

    @router.get("/api/help")
    def help_beside(path: str, lang: str = "en") -> dict[str, Any]:
        reading = read(services.draft.job_mapping(), services.home)
        try:
            return help_of(reading, path, lang if lang in LANGUAGES else "en")
        except KeyError as error:
            raise HTTPException(404) from error

    @router.get("/api/difference")
    def difference(base: str = "", lang: str = "en") -> dict[str, Any]:
        reading = read(services.draft.job_mapping(), services.home)
        return difference_of(services, reading, base or None, lang if lang in LANGUAGES else "en")

    @router.get("/api/strategies")
    def strategies(lang: str = "en") -> dict[str, Any]:
        reading = read(services.draft.job_mapping(), services.home)
        return strategies_of(reading, lang if lang in LANGUAGES else "en")

    return router
