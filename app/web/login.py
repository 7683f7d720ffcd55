"""The log-in page and log-out. The form works without its script and loads nothing from other servers.

At a host name that other programs of the machine share (localhost), the right password opens no session. The response
sends the browser to the server's own host name, with a ticket that works once.
"""

import html
import math
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.requests import ClientDisconnect

from app.text import LANGUAGES, t
from app.web.audit import Audit
from app.web.device_cookie import AGE_S, DeviceCookies
from app.web.login_throttle import PasswordChecks, Throttle, network_of
from app.web.security import AccessPolicy, operator_of
from app.web.sessions import IDLE_S, Sessions, Tickets

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
<link rel="stylesheet" href="/static/web/login.css">
<script src="/static/web/login.js" defer></script>
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


_REDIRECT_PAGE = """<!doctype html>
<html lang="{html_lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="0; url={address}">
<title>{title}</title>
<link rel="icon" href="/static/logo.svg">
<link rel="stylesheet" href="/static/web/login.css">
</head>
<body>
<main>
<header><img src="/static/logo.svg" alt="" width="40" height="40"><h1>{name}</h1></header>
<p class="lead">{lead}</p>
<p><a href="{address}">{go}</a></p>
<p class="hint">{hint}</p>
</main>
</body>
</html>
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Visitor:
    """A client that logs in."""

    address: str
    client: str
    """Wrong passwords of the same client are counted together."""

    is_known: bool
    """Whether the browser has logged in before or knows the server's own host name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogIn:
    """The parts that the log-in routes need, and the log-in itself."""

    policy: AccessPolicy
    sessions: Sessions
    tickets: Tickets
    checks: PasswordChecks
    throttle: Throttle
    devices: DeviceCookies
    audit: Audit

    def visitor(self, request: Request) -> Visitor:
        """Return who sends a request. Known devices and clients at the server's own name have separate counts."""
        address = request.client.host if request.client else ""
        knows_name = self.policy.is_secret(request.headers["host"])
        if device := self.devices.device(request.cookies):
            return Visitor(address=address, client=f"device {device}", is_known=True)
        client = f"{'own' if knows_name else 'any'} name {network_of(address)}"
        return Visitor(address=address, client=client, is_known=knows_name)

    async def attempt(self, password: str, visitor: Visitor) -> bool | float:
        """Return whether the password is right, or the seconds to wait.

        Attempts are audited. Only the first of several refusals of a client is, so that a flood cannot fill the disk.
        """
        if not self.checks.has_room(known=visitor.is_known):
            return self.checks.BUSY_S
        wait_s = self.throttle.admit(visitor.client)
        if wait_s > 0:
            if self.throttle.is_first_refusal(visitor.client):
                self.audit.record("login_throttled", client=visitor.address, wait_s=round(wait_s, 1))
            return wait_s
        if not await self.checks.matches(password, known=visitor.is_known):
            self.audit.record("login_failed", client=visitor.address)
            return False
        self.throttle.succeeded(visitor.client)
        self.audit.record("login", client=visitor.address)
        return True

    def open_session(self, request: Request, response: Response) -> Response:
        """Return the response with the cookie of a new session, and with a device cookie if there is none."""
        headers, cookie = response.headers, self.policy.cookie_header
        headers.append("set-cookie", cookie(self.sessions.open(), int(IDLE_S)))
        if self.devices.device(request.cookies) is None:
            headers.append("set-cookie", cookie(self.devices.make(), AGE_S, self.devices.name))
        return response


def routes(login: LogIn) -> APIRouter:
    """Return the routes GET and POST /login, GET /enter and POST /logout."""
    router = APIRouter()

    @router.get("/login")
    def show(request: Request) -> Response:
        lang = language_of(request)
        return RedirectResponse(f"/{lang}/", 303) if operator_of(request) else page(lang)

    @router.post("/login")
    async def log_in(request: Request) -> Response:
        lang = language_of(request)
        host = request.headers["host"]
        try:
            typed = await _typed_password(request)
        except ClientDisconnect:  # the client has gone, so this is not an attempt
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        outcome = await login.attempt(typed, login.visitor(request))
        if not isinstance(outcome, bool):
            return _wait_page(lang, outcome, at_plain_name=login.policy.is_plain(host))
        if not outcome:
            return page(lang, t(lang, "login.wrong"), HTTPStatus.UNAUTHORIZED)
        if login.policy.is_plain(host):
            address = login.policy.own_address(host)
            return _redirect_page(lang, f"{address}/enter?lang={lang}&ticket={login.tickets.make()}")
        return login.open_session(request, RedirectResponse(f"/{lang}/", 303))

    @router.get("/enter")
    def enter(request: Request) -> Response:
        lang = language_of(request)
        ticket = request.query_params.get("ticket", "")
        if login.policy.is_plain(request.headers["host"]) or not login.tickets.take(ticket):
            return RedirectResponse(f"/login?lang={lang}", 303)
        # A redirect would not help: the browser came from another site, so it would not send a strict cookie.
        return login.open_session(request, _redirect_page(lang, f"/{lang}/"))

    @router.post("/logout")
    def log_out(request: Request) -> Response:
        login.sessions.close(request.cookies.get(login.policy.cookie, ""))
        login.audit.record("logout", client=request.client.host if request.client else "")
        response = RedirectResponse(f"/login?lang={language_of(request)}", 303)
        response.headers.append("set-cookie", login.policy.cookie_header("", 0))
        return response

    return router


def _wait_page(lang: str, seconds: float, *, at_plain_name: bool) -> Response:
    wait_s = math.ceil(seconds)
    words = t(lang, "login.wait.plain_name" if at_plain_name else "login.wait", seconds=wait_s)
    response = page(lang, words, HTTPStatus.TOO_MANY_REQUESTS)
    response.headers["retry-after"] = str(wait_s)
    return response


def _redirect_page(lang: str, address: str) -> HTMLResponse:
    """Return a page that opens another address by itself."""
    words = {
        "title": t(lang, "login.title"),
        "name": t(lang, "app.name"),
        "lead": t(lang, "login.moving"),
        "go": t(lang, "login.moving.go"),
        "hint": t(lang, "login.moving.hint"),
        "address": address,
    }
    text = _REDIRECT_PAGE.format(**{key: html.escape(value) for key, value in words.items()}, html_lang=HTML_LANG[lang])
    return HTMLResponse(text, headers={"content-security-policy": _POLICY})


def page(lang: str, alert: str = "", status: int = HTTPStatus.OK) -> HTMLResponse:
    """Return the log-in form, with an alert above the field."""
    words = {
        "title": t(lang, "login.title"),
        "name": t(lang, "app.name"),
        "lead": t(lang, "login.lead"),
        "password": t(lang, "login.password"),
        "submit": t(lang, "login.submit"),
        "hint": t(lang, "login.hint"),
        "languages": t(lang, "shell.language"),
    }
    marks = {other: ' aria-current="true"' if other == lang else "" for other in LANGUAGES}
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
    """Return the language of ?lang=, else of the cookie, else the first supported one of the browser."""
    accepted = [
        part.split(";")[0].strip()[:2].lower() for part in request.headers.get("accept-language", "").split(",")
    ]
    languages = [request.query_params.get("lang"), request.cookies.get(LANGUAGE_COOKIE), *accepted]
    return next((lang for lang in languages if lang in LANGUAGES), LANGUAGES[0])


async def _typed_password(request: Request) -> str:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM_LIMIT_BYTES:
            return ""
    return parse_qs(body.decode("utf-8", "replace")).get("password", [""])[0]
