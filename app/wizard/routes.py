"""The wizard's plain routes, behind the gate like everything: files of the draft, strategies, why not a plan, help."""

from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from app.own_presets import read_preset
from app.services import Services
from app.text import LANGUAGES
from app.wizard import continuing
from app.wizard.difference import difference_of
from app.wizard.draft_state import Reading, read
from app.wizard.help import help_of
from app.wizard.review import archive
from app.wizard.secret_fields import secret_routes
from app.wizard.strategies import strategies_of
from app.wizard.why_not import why_not_of
from backend.job.problems import ProblemsError


def routes(services: Services) -> APIRouter:
    """All of them: those below, and /api/secrets and /api/passphrases of secrets.py."""
    router = APIRouter()
    for part in (secret_routes(services.audit), file_routes(services), answer_routes(services)):
        router.include_router(part)
    return router


def file_routes(services: Services) -> APIRouter:
    """GET /api/archive: a zip of what the draft renders to, 409 while it cannot be rendered.

    GET /api/presets/NAME: the job file of one of the user's presets, 404 where there is none.
    """
    router = APIRouter()

    @router.get("/api/archive")
    def files() -> Response:
        job = _reading(services).job
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

    return router


def answer_routes(services: Services) -> APIRouter:
    """GET /api/difference?base=RUN|recommended&lang=en: what the draft changes against it (difference.py).

    GET /api/strategies?lang=en: {rows} or {why}, the best plan of each strategy for the draft.

    GET /api/why-not?sizes=TP=8 PP=3&lang=en: {words, choose}, why the best plan of the draft does not have these sizes.

    GET /api/help?path=parallel.tensor&lang=en: a field's help, with what other values do to the draft; 404 for others.
    """
    router = APIRouter()

    @router.get("/api/why-not")
    def why_not(sizes: str, lang: str = "en") -> dict[str, Any]:
        return why_not_of(_reading(services), sizes, _language(lang))

    @router.get("/api/help")
    def help_beside(path: str, lang: str = "en") -> dict[str, Any]:
        try:
            return help_of(_reading(services), path, _language(lang))
        except KeyError as error:
            raise HTTPException(404) from error

    @router.get("/api/difference")
    def difference(base: str = "", lang: str = "en") -> dict[str, Any]:
        return difference_of(services, _reading(services), base or None, _language(lang))

    @router.get("/api/strategies")
    def strategies(lang: str = "en") -> dict[str, Any]:
        fits = partial(continuing.fits, services)
        return strategies_of(_reading(services), _language(lang), fits)

    return router


def _reading(services: Services) -> Reading:
    return read(services.draft.job_mapping(), services.home)


def _language(asked: str) -> str:
    return asked if asked in LANGUAGES else LANGUAGES[0]
