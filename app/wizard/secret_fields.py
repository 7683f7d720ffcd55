"""What the operator types and nobody may read again: secrets of the ranks, passphrases of SSH keys.

They come by a request of their own, not by one of Gradio's events, which keeps what it is sent; the answers hold names
alone, and nothing but the memory of the server the rest.
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

LONGEST = 4096
"""Letters of a name or of a secret; what is longer counts as missing."""


def secret_routes(audit: Audit) -> APIRouter:
    """GET /api/secrets: {names, common}. POST {name, value}: keep one. DELETE /api/secrets/NAME: forget it.

    Each answers with the names that are kept then; 422 with {problems} in the words of ?lang= where it was refused.

    POST /api/passphrases {name, value}: the passphrase of the key file `name`, tried at the next connection.
    """
    router = APIRouter()

    @router.get("/api/secrets")
    def names() -> dict[str, Any]:
        return {"names": SECRETS.names(), "common": COMMON}

    @router.post("/api/secrets")
    async def put(request: Request) -> JSONResponse:
        asked = await told(request)

        def keep() -> None:
            name, value = asked["name"].strip(), asked["value"].strip()
            refuse(name, value)  # before the audit: somebody may have typed the value where its name belongs
            audit.record("put_secret", name=name)
            SECRETS.put(name, value)

        return answered(request, keep, names)

    @router.delete("/api/secrets/{name}")
    def forget(request: Request, name: str) -> JSONResponse:
        def drop() -> None:
            if name in SECRETS.names():
                audit.record("forget_secret", name=name)
                SECRETS.forget(name)

        return answered(request, drop, names)

    @router.post("/api/passphrases")
    async def unlock(request: Request) -> JSONResponse:
        asked = await told(request)

        def keep() -> None:
            audit.record("unlock_key", identity_file=asked["name"])
            PASSPHRASES.put(asked["name"], asked["value"])

        return answered(request, keep, dict)

    return router


async def told(request: Request) -> dict[str, str]:
    """The texts of the request; read here, because a refusal of FastAPI's own would quote them."""
    try:
        asked = await request.json()
    except (ValueError, RecursionError):
        asked = None
    asked = asked if isinstance(asked, dict) else {}
    texts = {name: str(asked.get(name) or "") for name in ("name", "value")}
    return texts if all(len(text) <= LONGEST for text in texts.values()) else dict.fromkeys(texts, "")


def answered(request: Request, act: Callable[[], None], answer: Callable[[], dict[str, Any]]) -> JSONResponse:
    """The answer once it is done, or why it was not."""
    lang = request.query_params.get("lang", "")
    try:
        act()
    except ProblemsError as error:
        problems = [render_problem(lang if lang in LANGUAGES else LANGUAGES[0], one) for one in error.problems]
        return JSONResponse({"problems": problems}, 422)
    return JSONResponse(answer())
