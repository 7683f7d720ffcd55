"""HTTP routes of the wizard: files of the draft, strategies, why not a plan, help. All need a log-in."""

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
from app.wizard.draft_state import DraftState, read
from app.wizard.help import help_of
from app.wizard.review import archive
from app.wizard.secret_fields import secret_routes
from app.wizard.strategies import strategies_of
from app.wizard.why_not import why_not_of
from backend.job.problems import ProblemsError
from backend.planning import strategies as find_strategies


def routes(services: Services) -> APIRouter:
    """Return all routes: those below, and /api/secrets and /api/passphrases of secret_fields.py."""
    router = APIRouter()
    for router_part in (secret_routes(services.audit), file_routes(services), answer_routes(services)):
        router.include_router(router_part)
    return router


def file_routes(services: Services) -> APIRouter:
    """Return the routes of files.

    GET /api/archive: a zip of the draft's rendered files, 409 if the draft cannot be rendered.
    GET /api/presets/NAME: the job file of a user's preset, 404 if there is none.
    """
    router = APIRouter()

    @router.get("/api/archive")
    def files() -> Response:
        job = _draft_state(services).job
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
    """Return the routes of questions about the draft.

    GET /api/difference?base=RUN|recommended&lang=en: what the draft changes against the base (difference.py).
    GET /api/strategies?lang=en: {rows} or {why}, the best plan of each strategy for the draft.
    GET /api/why-not?sizes=TP=8 PP=3&lang=en: {words, choose}, why the draft's best plan does not have these sizes.
    GET /api/help?path=parallel.tensor&lang=en: a field's help, with the effect of other values; 404 for unknown fields.
    """
    router = APIRouter()

    @router.get("/api/why-not")
    def why_not(sizes: str, lang: str = "en") -> dict[str, Any]:
        return why_not_of(_draft_state(services), sizes, _language(lang))

    @router.get("/api/help")
    def help_beside(path: str, lang: str = "en") -> dict[str, Any]:
        try:
            return help_of(_draft_state(services), path, _language(lang))
        except KeyError as error:
            raise HTTPException(404) from error

    @router.get("/api/difference")
    def difference(base: str = "", lang: str = "en") -> dict[str, Any]:
        return difference_of(services, _draft_state(services), base or None, _language(lang))

    @router.get("/api/strategies")
    def strategies(lang: str = "en") -> dict[str, Any]:
        can_load = partial(continuing.can_load, services)
        find = partial(services.newest_strategies.get, compute=find_strategies)
        return strategies_of(_draft_state(services), _language(lang), can_load, find)

    return router


def _draft_state(services: Services) -> DraftState:
    return read(services.draft.job_mapping(), services.home)


def _language(lang: str) -> str:
    return lang if lang in LANGUAGES else LANGUAGES[0]
