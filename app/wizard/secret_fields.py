"""Routes for values that nobody can read again: secrets of the ranks, passphrases of SSH keys.

A page sends them by its own request, because Gradio keeps the data of its events. Answers contain only names. The
values stay only in the server's memory.
"""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from app.text import LANGUAGES, render_problem
from app.web.audit import Audit
from backend.cluster.ssh.passphrases import PASSPHRASES
from backend.job.problems import ProblemsError
from backend.runs.rank_secrets import COMMON, SECRETS, refuse

MAX_LENGTH = 4096
"""Maximum letters of a name or a secret. A longer text counts as missing."""


def secret_routes(audit: Audit) -> APIRouter:
    """Return the routes of secrets and passphrases.

    GET /api/secrets: {names, common}. POST {name, value}: keep a secret. DELETE /api/secrets/NAME: forget it.
    Each returns the names that are then kept. A refusal returns 422 with {problems} in the language ?lang=.
    POST /api/passphrases {name, value}: the passphrase of the key file `name`, used at the next connection.
    """
    router = APIRouter()

    @router.get("/api/secrets")
    def names() -> dict[str, Any]:
        return {"names": SECRETS.names(), "common": COMMON}

    @router.post("/api/secrets")
    async def put(request: Request) -> JSONResponse:
        body = await read_texts(request)

        def keep() -> None:
            name, value = body["name"].strip(), body["value"].strip()
            refuse(name, value)  # before the audit, because the user may have typed the secret as the name
            audit.record("put_secret", name=name)
            SECRETS.put(name, value)

        return respond(request, keep, names)

    @router.delete("/api/secrets/{name}")
    def forget(request: Request, name: str) -> JSONResponse:
        def drop() -> None:
            if name in SECRETS.names():
                audit.record("forget_secret", name=name)
                SECRETS.forget(name)

        return respond(request, drop, names)

    @router.post("/api/passphrases")
    async def unlock(request: Request) -> JSONResponse:
        body = await read_texts(request)

        def keep() -> None:
            audit.record("unlock_key", identity_file=body["name"])
            PASSPHRASES.put(body["name"], body["value"])

        return respond(request, keep, dict)

    return router


async def read_texts(request: Request) -> dict[str, str]:
    """Return the texts of the request. They are read here because an error of FastAPI would quote them."""
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        body = None
    body = body if isinstance(body, dict) else {}
    texts = {name: str(body.get(name) or "") for name in ("name", "value")}
    return texts if all(len(text) <= MAX_LENGTH for text in texts.values()) else dict.fromkeys(texts, "")


def respond(request: Request, act: Callable[[], None], answer: Callable[[], dict[str, Any]]) -> JSONResponse:
    """Call `act` and return the answer, or the problems if it was refused."""
    lang = request.query_params.get("lang", "")
    try:
        act()
    except ProblemsError as error:
        problems = [render_problem(lang if lang in LANGUAGES else LANGUAGES[0], problem) for problem in error.problems]
        return JSONResponse({"problems": problems}, 422)
    return JSONResponse(answer())
