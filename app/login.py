"""The log-in page and log-out: a plain form of our own, which works without its script, and nothing from elsewhere."""

import asyncio
import html
import math
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.audit import Audit
from app.i18n import LANGUAGES, t
from app.passwords import PasswordHash
from app.security import Door, operator_of
from app.sessions import IDLE_S, Sessions, Throttle

LANGUAGE_COOKIE = "megaboard_lang"
_FORM_LIMIT_BYTES = 4096
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
_PAGE = """<!doctype html>
<html lang="{html_lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="/static/logo.svg">
<link rel="stylesheet" href="/static/login.css">
<script src="/static/login.js" defer></script>
</head>
<body>
<main>
<header><img src="/static/logo.svg" alt="" width="40" height="40"><h1>{name}</h1></header>
<p class="lead">{lead}</p>
<form method="post" action="/login?lang={lang}">
{alert}<input type="text" name="username" autocomplete="username" value="operator" hidden readonly>
<label for="password">{password}</label>
<input id="password" name="password" type="password" autocomplete="current-password" required autofocus{invalid}>
<button type="submit">{submit}</button>
</form>
<p class="hint">{hint}</p>
<nav aria-label="{languages}"><a href="/login?lang=en" lang="en"{en}>English</a>
<a href="/login?lang=zh" lang="zh-CN"{zh}>中文</a></nav>
</main>
</body>
</html>
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogIn:
    """What the log-in routes need."""

    door: Door
    sessions: Sessions
    password: PasswordHash
    throttle: Throttle
    audit: Audit

    async def attempt(self, password: str, client: str) -> str | float | None:
        """A session's token, or the seconds to wait, or None for a wrong password.

        Each is audited, of refusals in a row the first: who floods the log-in must not fill the disk.
        """
        wait_s = self.throttle.admit()
        if wait_s > 0:
            if self.throttle.is_news():
                self.audit.record("login_throttled", client=client, wait_s=round(wait_s, 1))
            return wait_s
        # scrypt takes a tenth of a second: the event loop must go on serving the others.
        if not await asyncio.to_thread(self.password.matches, password):
            self.audit.record("login_failed", client=client)
            return None
        self.throttle.succeeded()
        self.audit.record("login", client=client)
        return self.sessions.open()


def routes(login: LogIn) -> APIRouter:
    """GET and POST /login, POST /logout."""
    router = APIRouter()

    @router.get("/login")
    def show(request: Request) -> Response:
        lang = language_of(request)
        return RedirectResponse(f"/{lang}/", 303) if operator_of(request) else page(lang)

    @router.post("/login")
    async def enter(request: Request) -> Response:
        lang = language_of(request)
        password = await _typed_password(request)
        outcome = await login.attempt(password, request.client.host if request.client else "")
        if outcome is None:
            return page(lang, t(lang, "login.wrong"), HTTPStatus.UNAUTHORIZED)
        if isinstance(outcome, float):
            wait_s = math.ceil(outcome)
            refused = page(lang, t(lang, "login.wait", seconds=wait_s), HTTPStatus.TOO_MANY_REQUESTS)
            refused.headers["retry-after"] = str(wait_s)
            return refused
        return _with_cookie(RedirectResponse(f"/{lang}/", 303), login.door.cookie_header(outcome, int(IDLE_S)))

    @router.post("/logout")
    def leave(request: Request) -> Response:
        login.sessions.close(request.cookies.get(login.door.cookie, ""))
        login.audit.record("logout", client=request.client.host if request.client else "")
        answer = RedirectResponse(f"/login?lang={language_of(request)}", 303)
        return _with_cookie(answer, login.door.cookie_header("", 0))

    return router


def page(lang: str, alert: str = "", status: int = HTTPStatus.OK) -> HTMLResponse:
    """The log-in form, with what went wrong above the field."""
    words = {
        "title": t(lang, "login.title"),
        "name": t(lang, "app.name"),
        "lead": t(lang, "login.lead"),
        "password": t(lang, "login.password"),
        "submit": t(lang, "login.submit"),
        "hint": t(lang, "login.hint"),
        "languages": t(lang, "shell.language"),
    }
    marks = {one: ' aria-current="true"' if one == lang else "" for one in LANGUAGES}
    shown = f'<p class="alert" role="alert" id="alert">{html.escape(alert)}</p>\n' if alert else ""
    text = _PAGE.format(
        **{key: html.escape(value) for key, value in words.items()},
        **marks,
        lang=lang,
        html_lang=HTML_LANG[lang],
        alert=shown,
        invalid=' aria-invalid="true" aria-describedby="alert"' if alert else "",
    )
    return HTMLResponse(text, status, headers={"content-security-policy": _POLICY})


HTML_LANG = {"en": "en", "zh": "zh-CN"}


def language_of(request: Request) -> str:
    """The language asked for by ?lang=, else the remembered one, else the browser's first that we speak."""
    accepted = [
        part.split(";")[0].strip()[:2].lower() for part in request.headers.get("accept-language", "").split(",")
    ]
    wanted = [request.query_params.get("lang"), request.cookies.get(LANGUAGE_COOKIE), *accepted]
    return next((lang for lang in wanted if lang in LANGUAGES), LANGUAGES[0])


async def _typed_password(request: Request) -> str:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_LIMIT_BYTES:
            return ""
    return parse_qs(body.decode("utf-8", "replace")).get("password", [""])[0]


def _with_cookie(response: Response, cookie: str) -> Response:
    response.headers.append("set-cookie", cookie)
    return response
